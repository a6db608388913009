"""Counters through a client: the same calls on each kind of address, with and without asyncio.

AsyncClient.counters ──▶ patience ──▶ a node (RemoteCounters), or the counters of this process
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from capellini.client.relay import Relay
from capellini.model.counters import (
    SUM,
    Collected,
    Counted,
    CounterService,
    Named,
    Reading,
    Update,
    check_listing,
    check_name,
    updates_in,
)
from capellini.model.errors import Unavailable
from capellini.model.service import Problem, Service

if TYPE_CHECKING:
    from capellini.client.reaching import Response

R = TypeVar("R")
T = TypeVar("T")
Read = Callable[["Response", type[Any]], Any]


class Asks(Protocol):
    """As RemoteService asks a node."""

    async def _ask(self, method: str, path: str, content: object = None) -> Response: ...


class _Results(msgspec.Struct, frozen=True):
    results: list[dict[str, Any]]


class _Named(msgspec.Struct, frozen=True):
    counters: list[Named]


class RemoteCounters(CounterService):
    """A node's counters, over HTTP. `read` makes of an answer what it should be."""

    def __init__(self, node: Asks, read: Read) -> None:
        self._node = node
        self._read = read

    async def update(self, name: str, updates: Sequence[object], kind: str = SUM) -> None:
        check_name(name)
        if values := updates_in(updates):
            content = {"values": values, "kind": kind}
            await self._node._ask("POST", f"/v1/counters/{quote(name, safe='')}", content)

    async def update_many(self, updates: Sequence[Update]) -> list[Counted | Problem]:
        response = await self._node._ask("POST", "/v1/counter-updates", {"updates": list(updates)})
        results = self._read(response, _Results).results
        return [Problem(one["error"], one["says"]) if "error" in one else Counted() for one in results]

    async def read_many(self, names: Sequence[str], sketch: bool = False) -> list[Reading | Problem]:
        content = {"counters": list(names), "sketch": sketch}
        results = self._read(await self._node._ask("POST", "/v1/counter-reads", content), _Results).results
        return [msgspec.convert(one, Problem) if "error" in one else msgspec.convert(one, Reading) for one in results]

    async def listed(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[Named]:
        check_listing(prefix, after, limit)
        query = urlencode({"prefix": prefix, "after": after, "limit": limit})
        found: list[Named] = self._read(await self._node._ask("GET", f"/v1/counters?{query}"), _Named).counters
        return found

    async def intersection(self, names: Sequence[str]) -> dict[str, float]:
        response = await self._node._ask("POST", "/v1/counter-intersection", {"counters": list(names)})
        found: dict[str, float] = self._read(response, dict[str, float])
        return found

    async def collect(self, name: str) -> Collected:
        response = await self._node._ask("POST", f"/v1/counters/{quote(check_name(name), safe='')}/gc")
        found: Collected = self._read(response, Collected)
        return found


class RelayedCounters(CounterService):
    """The counters behind a relay, whatever that is at the time of the call."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def _call(self, operation: str, do: Callable[[CounterService], Awaitable[R]]) -> R:
        return await self._relay.call(operation, lambda behind: do(counters_of(behind)))

    async def update(self, name: str, updates: Sequence[object], kind: str = SUM) -> None:
        await self._call("counter_update", lambda counters: counters.update(name, updates, kind))

    async def update_many(self, updates: Sequence[Update]) -> list[Counted | Problem]:
        return await self._call("counter_update", lambda counters: counters.update_many(updates))

    async def read_many(self, names: Sequence[str], sketch: bool = False) -> list[Reading | Problem]:
        return await self._call("counter_read", lambda counters: counters.read_many(names, sketch))

    async def listed(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[Named]:
        return await self._call("counter_read", lambda counters: counters.listed(prefix, after, limit))

    async def intersection(self, names: Sequence[str]) -> dict[str, float]:
        return await self._call("counter_read", lambda counters: counters.intersection(names))

    async def collect(self, name: str) -> Collected:
        return await self._call("counter_collect", lambda counters: counters.collect(name))


def counters_of(service: Service) -> CounterService:
    if isinstance(service, Relay):
        return RelayedCounters(service)
    if service.counters is None:
        raise Unavailable("there are no counters at this address")
    return service.counters


class WaitingCounters:
    """The same for programs without asyncio: each call waits for its answer."""

    def __init__(self, counters: CounterService, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._counters = counters
        self._run = run

    def add(self, name: str, value: int = 1) -> None:
        """Add to a sum. Durable when it returns."""
        self._run(self._counters.add(name, value))

    def update(self, name: str, updates: Sequence[object], kind: str = SUM) -> None:
        """All of them or, when one is wrong, none. Durable when it returns."""
        self._run(self._counters.update(name, updates, kind))

    def update_many(self, updates: Sequence[Update]) -> list[Counted | Problem]:
        found: list[Counted | Problem] = self._run(self._counters.update_many(updates))
        return found

    def read(self, name: str, sketch: bool = False) -> Reading:
        found: Reading = self._run(self._counters.read(name, sketch))
        return found

    def read_many(self, names: Sequence[str], sketch: bool = False) -> list[Reading | Problem]:
        found: list[Reading | Problem] = self._run(self._counters.read_many(names, sketch))
        return found

    def listed(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[Named]:
        found: list[Named] = self._run(self._counters.listed(prefix, after, limit))
        return found

    def intersection(self, names: Sequence[str]) -> dict[str, float]:
        found: dict[str, float] = self._run(self._counters.intersection(names))
        return found

    def collect(self, name: str) -> Collected:
        found: Collected = self._run(self._counters.collect(name))
        return found
