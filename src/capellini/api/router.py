"""From method and path to a route: a tree of path segments, and a small memory of paths seen.

    /v1/queues/{name}/messages/get        v1 ─▶ queues ─▶ {name} ─▶ messages ─▶ get ─▶ {POST: route}

Most requests name few distinct paths, so that a dict finds them at once. The memory is bounded: paths that hold message
ids would fill it for ever.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from capellini.api.exchange import Request, Response

SEEN_MOST: Final = 4_096  # paths remembered; beyond it the memory starts over
SEEN_BYTES: Final = 512  # of a path: a longer one names nothing that is asked for often, and many would fill the memory


class Kind(enum.Enum):
    """What a request does, as far as the gate cares."""

    SYSTEM = "system"  # health and metrics: always answered
    READ = "read"
    CHANGE = "change"  # something is made, moved, scheduled
    TIDY = "tidy"  # queues are emptied, changed, paused, removed: what makes room on a full disk
    PUT = "put"
    TAKE = "take"  # gets; may wait for long
    FINISH = "finish"  # acks, nacks, extends: they end work, so they are let in when others are not


Handler = Callable[[Any, Request], Awaitable[Response]]


class Route(msgspec.Struct, frozen=True, eq=False):
    """One line of the table: how it is called, what it takes and gives. `takes`, `query` and `gives` are types for the
    OpenAPI document."""

    method: str
    path: str
    kind: Kind
    handler: Handler
    says: str
    takes: Any = None
    query: Any = None
    gives: Any = None
    status: int = 200
    media: tuple[str, ...] = ("application/json", "application/msgpack")
    raw: bool = False  # also takes the bare body of one message
    body_needed: bool = False
    at_once: bool = False  # on a channel it is begun without a task: nothing in it asks for its own

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"


class Found(msgspec.Struct, frozen=True):
    """`route` None: nothing there; then `allow` lists the methods the path has, if it exists."""

    route: Route | None
    params: Mapping[str, str]
    allow: tuple[str, ...] = ()


class _Place:
    __slots__ = ("any", "any_name", "next", "routes")

    def __init__(self) -> None:
        self.next: dict[str, _Place] = {}
        self.any: _Place | None = None
        self.any_name = ""
        self.routes: dict[str, Route] = {}


class Router:
    def __init__(self, routes: Iterable[Route], checks: Mapping[str, Callable[[str], str]]) -> None:
        """`checks` look at path parameters by name, and raise Invalid."""
        self._root = _Place()
        self._checks = checks
        self._seen: dict[tuple[bytes, bytes], Found] = {}
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        place = self._root
        for segment in route.path.strip("/").split("/"):
            if segment.startswith("{"):
                if place.any is None:
                    place.any, place.any_name = _Place(), segment[1:-1]
                if place.any_name != segment[1:-1]:
                    raise ValueError(f"{route.path} names a parameter that another route calls {place.any_name}")
                place = place.any
            else:
                place = place.next.setdefault(segment, _Place())
        if route.method in place.routes:
            raise ValueError(f"{route.label} is in the table twice")
        place.routes[route.method] = route

    def find(self, method: bytes, path: bytes) -> Found:
        """Raises Invalid when a parameter in the path is not what it should be."""
        found = self._seen.get((method, path))
        if found is None:
            found = self._walk(method.decode("ascii", "replace"), path.decode("latin-1"))
            if found.route is not None and len(path) <= SEEN_BYTES:
                if len(self._seen) >= SEEN_MOST:
                    self._seen.clear()
                self._seen[method, path] = found
        return found

    def _walk(self, method: str, path: str) -> Found:
        place: _Place | None = self._root
        params: dict[str, str] = {}
        for segment in path[1:].split("/"):
            assert place is not None
            after = place.next.get(segment)
            if after is None and segment and place.any is not None:
                params[place.any_name] = unquote(segment, errors="replace")
                after = place.any
            place = after
            if place is None:
                return Found(None, {})
        if place is None or not place.routes or not path.startswith("/"):
            return Found(None, {})
        route = place.routes.get(method) or (place.routes.get("GET") if method == "HEAD" else None)
        if route is None:
            return Found(None, {}, allowed(place.routes))
        for name, check in self._checks.items():
            if name in params:
                params[name] = check(params[name])
        return Found(route, params)


def allowed(methods: Iterable[str]) -> tuple[str, ...]:
    """For the Allow header: HEAD comes with GET, OPTIONS with everything."""
    found = {*methods, "OPTIONS"}
    return tuple(sorted(found | {"HEAD"} if "GET" in found else found))
