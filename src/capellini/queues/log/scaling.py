"""Scaling: how many extents of a queue are open, and at which nodes.

    every node      measures what each of its open extents takes                               (`Meter`)
    the manager     asks the nodes that write, decides, writes the plan beside the list of extents   (`planned`)
    every node      reads the plan with the list, opens what it lacks, seals what is too much  (`writing`)

The manager is the live node that the queue's hash likes best: whoever lives by its lease. Two at a time, for a moment,
do no harm: a plan is changed by compare-and-set, and it is advice. Extents side by side only: a chain has one open
extent, and an embedded store one writer.

How many. An extent is full at FULL_PER_S messages or FULL_BYTES_S a second; what it takes of that is its share.

    open ──▶ more     at once, when the extents that there are would be above HIGH each
    open ──▶ fewer    when so many fewer would be below LOW each, for CALM_S on end: what falls may rise again
    at least one at each node that takes puts, so that they need not be sent on; at most `extents_most` in all

Where. First one at each node that takes puts, those that take most first; then one by one at the node that has fewest,
so that all nodes that live have about as many. A node that joins gets some, a node that leaves is not counted:
producers on streams follow where extents are written. A node that the plan does not name opens one when it takes puts,
as long as there may be more; else, as one that is to have none, it sends its puts on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from capellini.model.errors import CapelliniError
from capellini.queues.assignments import liking
from capellini.queues.lease import Watcher
from capellini.queues.log.extents import OPEN, Extents
from capellini.queues.log.peers import Call
from capellini.queues.log.place import LogPlace
from capellini.queues.log.writing import Writers

FULL_PER_S: Final = 100_000.0  # messages of one extent: what one writer comfortably takes
FULL_BYTES_S: Final = 16.0 * 1024 * 1024  # of one extent: three servers or so write each byte, beside other work
HIGH: Final = 0.8
LOW: Final = 0.4  # half of HIGH: what was opened for a load is not sealed for the same load
CALM_S: Final = 60.0
SCALE_S: Final = 5.0  # between two decisions: a few samples of each extent
WEIGHT: Final = 0.3  # of the newest sample
NOTHING: Final = 1e-4  # of a full extent: nobody puts


class Load(msgspec.Struct, frozen=True, array_like=True):
    """What an open extent takes."""

    extent: str
    per_s: float  # messages
    bytes_per_s: float

    @property
    def share(self) -> float:
        """Of a full extent."""
        share = max(self.per_s / FULL_PER_S, self.bytes_per_s / FULL_BYTES_S)
        return share if share > NOTHING else 0.0


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Open extents that each node should have. A node that is not named: one when it takes puts."""

    wanted: dict[str, int] = {}
    limit: int = 0


def plan_of(text: str | None) -> Plan:
    """As it was read; empty: there is none yet."""
    return msgspec.json.decode(text, type=Plan) if text else Plan()


class Meter:
    """Rates of counters that only rise, smoothed."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int, int]] = {}
        self._rates: dict[str, tuple[float, float]] = {}

    def sample(self, counts: Iterable[tuple[str, int, int]], now_s: float) -> None:
        """All that there are: extent, messages and bytes since it was opened."""
        seen: dict[str, tuple[float, int, int]] = {}
        rates: dict[str, tuple[float, float]] = {}
        for extent, messages, size in counts:
            at_s, messages_before, size_before = self._seen.get(extent, (now_s, messages, size))
            rate = self._rates.get(extent, (0.0, 0.0))
            if now_s > at_s:
                newest = (messages - messages_before) / (now_s - at_s), (size - size_before) / (now_s - at_s)
                rate = rate[0] + WEIGHT * (newest[0] - rate[0]), rate[1] + WEIGHT * (newest[1] - rate[1])
            seen[extent], rates[extent] = (now_s, messages, size), rate
        self._seen, self._rates = seen, rates

    def loads(self) -> list[Load]:
        return [Load(extent, per_s, bytes_per_s) for extent, (per_s, bytes_per_s) in self._rates.items()]


def needed(total: float, now: int, calm_s: float) -> int:
    """How many extents a load needs, `now` being open. `calm_s`: for how long fewer would have done."""
    more = math.ceil(total / HIGH)
    fewer = math.ceil(total / LOW)
    if more > now:
        return more
    return fewer if fewer < now and calm_s >= CALM_S else now


def spread(count: int, shares: Mapping[str, float], live: Iterable[str], before: Mapping[str, int]) -> dict[str, int]:
    """`count` extents over the live nodes. `shares`: what each takes now; `before`: what each was to have."""
    nodes = sorted(set(live))
    wanted = dict.fromkeys(nodes, 0)
    taking = sorted((node for node in nodes if shares.get(node, 0.0) > 0), key=lambda node: -shares[node])
    for node in taking[:count]:
        wanted[node] = 1
    for _ in range(count - len(taking[:count])):
        wanted[min(nodes, key=lambda node: (wanted[node], -before.get(node, 0), -shares.get(node, 0.0), node))] += 1
    return wanted


def planned(
    shares: Mapping[str, float], live: Iterable[str], limit: int, before: Mapping[str, int], calm_s: float
) -> dict[str, int]:
    """Open extents that live nodes should have; those that are to have none are named only where there may be no more.
    Empty: nobody puts."""
    nodes = set(live)
    now = sum(count for node, count in before.items() if node in nodes)
    taking = sum(share > 0 for node, share in shares.items() if node in nodes)
    if not taking and (not now or calm_s >= CALM_S):
        return {}
    count = min(max(needed(sum(shares.values()), now, calm_s), taking, 1), limit)
    wanted = spread(count, shares, nodes, before)
    return wanted if count == limit else {node: some for node, some in wanted.items() if some}


class Scaling:
    """Of one queue in one node. `call` reaches other nodes."""

    def __init__(self, place: LogPlace, extents: Extents, writers: Writers, watcher: Watcher, call: Call) -> None:
        self._place, self._extents, self._writers, self._watcher = place, extents, writers, watcher
        self._call = call
        self._meter = Meter()
        self._decided_s = place.clock.elapsed_s()
        self._calm_since_s: float | None = None

    @property
    def plan(self) -> Plan:
        return plan_of(self._extents.plan)

    def loads(self) -> list[Load]:
        """What the extents that are open here take."""
        return self._meter.loads()

    def told(self, extent: str) -> str:
        """For people: what it takes, and how many there should be. Of extents that are open here."""
        load = next((one for one in self.loads() if one.extent == extent), None)
        if load is None:
            return ""
        wanted, limit = sum(self.plan.wanted.values()), self._place.options.extents_most
        planned = f", {wanted} of at most {limit} are to be open" if wanted else ""
        return f"takes {load.per_s:.0f} messages and {load.bytes_per_s:.0f} bytes a second{planned}"

    async def turn(self) -> None:
        """About once a second, after a look at the list."""
        place, now_s = self._place, self._place.clock.elapsed_s()
        self._meter.sample(((w.extent.name, w.messages, w.bytes) for w in self._writers.accepting()), now_s)
        if place.chained or place.store.alone:
            return
        if now_s - self._decided_s >= SCALE_S and self._manages():
            self._decided_s = now_s
            await self._decide(now_s)
        self._writers.follow(self.plan.wanted, self._living())

    def _living(self) -> set[str]:
        return {*self._watcher.live(), self._place.node}

    def _manages(self) -> bool:
        of = f"scale/{self._place.name}/{self._place.generation}"
        return max(self._living(), key=lambda node: liking(of, node)) == self._place.node

    async def _decide(self, now_s: float) -> None:
        place, before = self._place, self.plan
        writing = {
            extent.node for extent in self._extents.known() if extent.state == OPEN and extent.home == place.home
        }
        if not writing and not before.wanted:
            return  # nobody uses it
        shares = {node: share for node in sorted(writing) if (share := await self._share(node)) is not None}
        if len(shares) < len(writing & self._living()):
            place.guards["plan put off: a node did not say what it takes"] += 1
            return
        total, now = sum(shares.values()), sum(before.wanted.values())
        if math.ceil(total / LOW) >= now:
            self._calm_since_s = None
        elif self._calm_since_s is None:
            self._calm_since_s = now_s
        calm_s = 0.0 if self._calm_since_s is None else now_s - self._calm_since_s
        limit = place.options.extents_most
        after = Plan(planned(shares, self._living(), limit, before.wanted, calm_s), limit)
        if after != before and await self._extents.set_plan(msgspec.json.encode(after).decode()):
            more = sum(after.wanted.values()) - now
            place.guards["plan: more extents" if more > 0 else "plan: fewer extents" if more else "plan: moved"] += 1
            self._calm_since_s = None

    async def _share(self, node: str) -> float | None:
        """What a node's extents take; None: it does not say."""
        if node == self._place.node:
            return sum(load.share for load in self.loads())
        if node not in self._living():
            return None
        try:
            loads = msgspec.msgpack.decode(await self._call(node, "load", []), type=list[Load])
        except (CapelliniError, msgspec.MsgspecError):
            return None
        return sum(load.share for load in loads)
