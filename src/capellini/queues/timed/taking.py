"""Taking: what is due, from the shards held here and from those at other nodes.

Other nodes are asked one after the other, until one has something. One that does not answer soon (it is paused, or the
link to it is cut) is let hang: what is ready elsewhere does not wait for it, and nobody asks it again before its answer
has come or is lost. What such a late answer brings goes to whoever asks next; if nobody does, it is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from capellini.model.errors import StoreError
from capellini.model.message import Delivery
from capellini.queues.resting import rest
from capellini.queues.timed.peers import Payload, Peers
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.serving import FAR_MS, Serving

OTHERS_EVERY_S: Final = 0.5  # other nodes are asked first so often, so that their shards are not left behind
HANGS_S: Final = 1.0  # who takes longer to answer hangs: half of what a message that is due may wait


class Got(msgspec.Struct, frozen=True):
    """One delivery, as `Getting` hands it out."""

    delivery: Delivery
    until_s: float  # elapsed time: too late to be handed out then
    first: int = 0
    count: int = 1


class Owners(msgspec.Struct):
    """What this node knows of who works which shard; renewed by its keeper."""

    me: str
    nodes: dict[int, str] = msgspec.field(default_factory=dict)  # by shard


class Holders(msgspec.Struct, frozen=True):
    """Who hands out the messages of a timed queue: this node, and others."""

    serving: Serving  # the shards held here
    owners: Owners
    peers: Peers


class Taking:
    """What `Getting` asks for a timed queue's messages. `release` gives messages back that nobody got."""

    more: Final = False  # each claim has looked at all that is due

    def __init__(
        self,
        place: TimedPlace,
        holders: Holders,
        release: Callable[[list[Got]], None],
        spawn: Callable[[Coroutine[Any, Any, Any]], None],
    ) -> None:
        self._place, self._release, self._spawn = place, release, spawn
        self._serving, self._owners, self._peers = holders.serving, holders.owners, holders.peers
        self._others_s = -1e9
        self._hanging: set[str] = set()  # nodes whose answer is late
        self._late: dict[str, tuple[int, Got]] = {}  # by receipt: with the visibility that was asked for, in ms

    async def claim(self, count: int, visibility_ms: int) -> list[Got]:
        if late := self._take_late(count, visibility_ms):
            return late
        now_s = self._place.clock.elapsed_s()
        others = sorted(set(self._owners.nodes.values()) - {self._owners.me, ""} - self._hanging)
        until_s = now_s + visibility_ms / 1000
        sent_ms = self._place.now_ms()
        found: list[Delivery] = []
        if now_s - self._others_s < OTHERS_EVERY_S:
            found = self._serving.take(count, visibility_ms, sent_ms)
        if not found and others:
            self._others_s = now_s
            found = await self._take_elsewhere(others, count, visibility_ms)
        if not found:
            found = self._serving.take(count, visibility_ms, self._place.now_ms())
        return [Got(one, until_s) for one in found]

    async def _take_elsewhere(self, nodes: list[str], count: int, visibility_ms: int) -> list[Delivery]:
        """From the first of the other nodes that has something, unless one hangs: then the rest is asked next time."""
        self._place.random.shuffle(nodes)
        for node in nodes:
            asked = asyncio.get_running_loop().create_task(self._take_at(node, count, visibility_ms))
            answered = asyncio.Event()
            asked.add_done_callback(lambda _: answered.set())  # noqa: B023
            try:
                await rest(self._place.clock, answered, HANGS_S)
            finally:
                if not asked.done():
                    self._let_hang(node, asked, visibility_ms)
            if not asked.done():
                return []
            if found := asked.result():
                return found
        return []

    async def _take_at(self, node: str, count: int, visibility_ms: int) -> list[Delivery]:
        sent_ms = self._place.now_ms()
        question = Payload(self._place.generation, -1, [count, visibility_ms])
        try:
            data = await self._peers.call(node, self._place.name, "take", msgspec.msgpack.encode(question))
        except StoreError:
            return []  # what it handed out, if it did, comes back when its visibility ends
        visible_at = (sent_ms + visibility_ms) / 1000
        found = msgspec.msgpack.decode(data, type=list[Delivery])
        return [msgspec.structs.replace(one, visible_at=visible_at) for one in found]

    def _let_hang(self, node: str, asked: asyncio.Task[list[Delivery]], visibility_ms: int) -> None:
        """It is not asked again before it has answered. What it hands out is for who asks next, or is given back."""
        self._place.guards["holder hangs"] += 1
        self._hanging.add(node)
        until_s = self._place.clock.elapsed_s() - HANGS_S + visibility_ms / 1000

        async def answered() -> None:
            try:
                late = {one.receipt: (visibility_ms, Got(one, until_s)) for one in await asked}
            finally:
                self._hanging.discard(node)
            self._late.update(late)
            self._place.woken()
            await self._place.clock.sleep(HANGS_S)
            if left := [found[1] for receipt in late if (found := self._late.pop(receipt, None)) is not None]:
                self._release(left)

        self._spawn(answered())

    def _take_late(self, count: int, visibility_ms: int) -> list[Got]:
        receipts = [receipt for receipt, (life_ms, _) in self._late.items() if life_ms == visibility_ms]
        return [self._late.pop(receipt)[1] for receipt in receipts[:count]]

    def next_due_ms(self) -> int:
        """When something here can be had."""
        times = [at_ms for holder in self._serving.held() if (at_ms := holder.next_ms()) is not None]
        return min(times, default=FAR_MS)
