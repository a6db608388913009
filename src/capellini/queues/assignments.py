"""Assignments: which incarnation of a node owns what, and how owners change.

    (scope) ▸ item      node, incarnation, epoch, token        no node: nobody owns it

An item is taken by compare-and-set on its row as it was read, raising the epoch; so of many takers one wins, and what
was written under a lower epoch can be told from what its owner writes. It may be taken when nobody owns it, or when
its owner's incarnation is over for good (`Watcher.is_over`). An owner that is only slow keeps what it has until it
was ended.

Who takes what. Every node computes the same plan from the same view (`fair_share`): each item that has no living
owner goes to the node that its hash likes best among those below their share; who owns more than its share gives some
up. So fifty nodes that start together each go for their own few items, one compare-and-set each; views that differ
for a moment cost a refusal, never two owners. A turn takes a bounded number of items, in an order of its own.

What fails, and what then happens
- The taker's lease ended while it took: it does not use what it took, and others may take it, since it is over.
- The answer was lost: the compare-and-set is repeated until it is known; nobody takes from a living owner meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from capellini.model.clock import Clock
from capellini.queues.lease import Lease, Watcher
from capellini.queues.trail import TOKEN, follow, new_name, settle_named, text_of
from capellini.store.interface import Cas, Change, Key, Slice, Store, Value
from capellini.store.schema import ASSIGNMENTS

TAKES_PER_TURN: Final = 16  # a node that starts fills up over a few turns, and leaves others theirs
TAKES_ALONE: Final = 1_024  # where nobody else wants any; each costs a write, and others are served between them
GIVES_PER_TURN: Final = 4  # moving what works costs more than being a little uneven
PAGE: Final = 1_000


class Owned(msgspec.Struct, frozen=True):
    """An item's row. `node` empty: nobody owns it."""

    item: str
    node: str
    incarnation: str
    epoch: int
    token: str | None


class Plan(msgspec.Struct, frozen=True):
    take: tuple[str, ...]
    give_up: tuple[str, ...]


def owned_of(item: str, values: Mapping[str, Value]) -> Owned:
    """The row as it was read; an item without one has epoch 0 and no owner."""
    epoch = values.get("epoch")
    return Owned(
        item,
        text_of(values, "node") or "",
        text_of(values, "incarnation") or "",
        epoch if isinstance(epoch, int) else 0,
        text_of(values, TOKEN),
    )


def liking(item: str, node: str) -> bytes:
    return blake2b(f"{item}\0{node}".encode(), digest_size=8).digest()


def fair_share(items: Iterable[str], live: Iterable[str], owners: Mapping[str, str]) -> dict[str, str]:
    """Which live node should own each item. `owners`: who does now. What has a living owner stays, unless that one
    has more than its share; no two nodes' shares differ by more than one."""
    nodes = sorted(set(live))
    if not nodes:
        return {}
    todo = sorted(set(items))
    if len(nodes) == 1:
        return dict.fromkeys(todo, nodes[0])
    least, richer = divmod(len(todo), len(nodes))
    held: dict[str, list[str]] = {node: [] for node in nodes}
    for item in todo:
        if (owner := owners.get(item)) in held and owner is not None:
            held[owner].append(item)
    # who holds most keeps the larger shares: the fewest moves
    by_load = sorted(nodes, key=lambda node: (-len(held[node]), node))
    share = {node: least + (place < richer) for place, node in enumerate(by_load)}
    plan: dict[str, str] = {}
    for node, mine in held.items():
        mine.sort(key=lambda item, node=node: liking(item, node), reverse=True)  # type: ignore[misc]
        plan.update(dict.fromkeys(mine[: share[node]], node))
        share[node] -= min(len(mine), share[node])
    for item in todo:
        if item not in plan:
            best = max((node for node in nodes if share[node]), key=lambda node: liking(item, node))
            plan[item] = best
            share[best] -= 1
    return plan


def plan_of(me: str, items: Iterable[str], live: Iterable[str], owners: Mapping[str, str]) -> Plan:
    """What `me` should take and give up now."""
    living = set(live)
    plan = fair_share(items, living, owners)
    take = tuple(item for item, node in plan.items() if node == me and owners.get(item) not in living)
    give_up = tuple(item for item, node in plan.items() if node != me and owners.get(item) == me)
    return Plan(take, give_up)


class Assignments:
    """The items of one scope, as this node's lease may own them."""

    def __init__(
        self, store: Store, clock: Clock, random: random.Random, lease: Lease, watcher: Watcher, scope: str
    ) -> None:
        self._store, self._clock, self._random = store, clock, random
        self._lease, self._watcher = lease, watcher
        self._partition: Key = (scope,)
        self.rows: dict[str, Owned] = {}  # as they were listed last
        self.attempts = 0  # compare-and-sets to take
        self.refused = 0  # of them, lost to another

    async def list(self) -> dict[str, Owned]:
        """All items that have a row."""
        found: dict[str, Owned] = {}
        after: Key | None = None
        while True:
            page = await self._store.read(Slice(ASSIGNMENTS, self._partition, after=after, limit=PAGE))
            found.update((str(row.key[0]), owned_of(str(row.key[0]), row.values)) for row in page.rows)
            if not page.more:
                self.rows = found
                return found
            after = page.rows[-1].key

    async def owner(self, item: str) -> Owned:
        """As a quorum has it now."""
        page = await self._store.read(Slice(ASSIGNMENTS, self._partition, start=(item,), limit=1))
        return owned_of(item, page.rows[0].values if page.rows and page.rows[0].key == (item,) else {})

    def mine(self, owned: Owned) -> bool:
        """Is it this incarnation's, and may this node act?"""
        return self._names_me(owned) and self._lease.valid()

    async def take(self, item: str) -> int | None:
        """The epoch under which this node owns the item now. None: another owns it, or was faster. Raises Unavailable
        without a valid lease."""
        self._lease.require()
        seen = await self.owner(item)
        if self._names_me(seen):
            return seen.epoch if self._lease.valid() else None
        if seen.node and not await self._watcher.is_over(seen.node, seen.incarnation):
            return None
        self._lease.require()
        self.attempts += 1
        if not await self._write(seen, self._lease.node, self._lease.incarnation, seen.epoch + 1):
            self.refused += 1
            return None
        self._lease.require()  # it may have ended while this was written; then others may take it
        return seen.epoch + 1

    async def give_up(self, item: str) -> bool:
        """Others may take it at once. False: it was not this incarnation's. Stop acting on it before."""
        seen = await self.owner(item)
        return self._names_me(seen) and await self._write(seen, "", "", seen.epoch)

    async def forget(self, item: str) -> bool:
        """Its row goes: nothing is left to be owned. False: another owns it. Only for items under which nothing is
        written that carries an epoch, since epochs start anew with the next row."""
        seen = await self.owner(item)
        if not self._names_me(seen) and seen.node and not await self._watcher.is_over(seen.node, seen.incarnation):
            return False
        nothing: dict[str, Value] = dict.fromkeys(column.name for column in ASSIGNMENTS.columns)
        cas = Cas(ASSIGNMENTS, self._partition, (Change((item,), {TOKEN: seen.token}, nothing),))
        return seen.token is not None and (await self._store.compare_and_set(cas)).applied

    async def turn(self, items: Iterable[str]) -> tuple[dict[str, int], tuple[str, ...]]:
        """One step towards a fair share, after a `look` of the watcher: what was taken, with epochs; and what should
        be given up, once this node has stopped acting on it (`give_up`)."""
        self._lease.require()
        owners = {owned.item: owned.node for owned in (await self.list()).values() if self._lives(owned)}
        plan = plan_of(self._lease.node, items, {*self._watcher.live(), self._lease.node}, owners)
        wanted = list(plan.take)
        self._random.shuffle(wanted)
        if self._store.alone:
            taken = await self._take_together(wanted[:TAKES_ALONE])
        else:  # one after another: compare-and-sets on one partition hinder each other
            taken = {item: await self.take(item) for item in wanted[:TAKES_PER_TURN]}
        return {item: epoch for item, epoch in taken.items() if epoch is not None}, plan.give_up[:GIVES_PER_TURN]

    async def _take_together(self, wanted: Sequence[str]) -> dict[str, int | None]:
        """Those that wait together share an fsync."""
        taken: dict[str, int | None] = {}
        for first in range(0, len(wanted), TAKES_PER_TURN):
            some = wanted[first : first + TAKES_PER_TURN]
            taken.update(zip(some, await asyncio.gather(*map(self.take, some)), strict=True))
        return taken

    def _lives(self, owned: Owned) -> bool:
        """Is its owner's incarnation the one that lives now, as far as this node knows? Of a node that came back under
        its name the earlier one owns nothing any more."""
        return self._names_me(owned) or (
            owned.node not in ("", self._lease.node) and self._watcher.incarnation(owned.node) == owned.incarnation
        )

    def _names_me(self, owned: Owned) -> bool:
        return (owned.node, owned.incarnation) == (self._lease.node, self._lease.incarnation)

    async def _write(self, seen: Owned, node: str, incarnation: str, epoch: int) -> bool:
        name = new_name(self._random)
        values: dict[str, Value] = {
            "node": node,
            "incarnation": incarnation,
            "epoch": epoch,
            TOKEN: follow(seen.token, name),
        }
        cas = Cas(ASSIGNMENTS, self._partition, (Change((seen.item,), {TOKEN: seen.token}, values),))
        outcome = await settle_named(self._store, self._clock, cas, (seen.item,), seen.token, name)
        return outcome.applied
