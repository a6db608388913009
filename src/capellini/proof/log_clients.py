"""The clients of a simulated run of log queues: producers with a sequence that resend what was not confirmed, plain
ones, and consumers that are slow, forget, or insist on old receipts, as for other kinds.

A producer with a sequence has up to a window of chunks under way, sends again from the first that was not confirmed, at
whatever node, and sometimes sends again what was. Who refuses it for good (its queue was emptied, and nobody knows
its sequence) makes it begin anew under a new name.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import Final, cast

import msgspec

from capellini.model import chunks
from capellini.model.message import NewMessage
from capellini.model.service import Put
from capellini.proof.clients import Consumer, Producer
from capellini.proof.history import Call, Sent
from capellini.proof.log_nodes import LogNodes
from capellini.proof.log_plan import COLORS
from capellini.proof.nodes import PATIENCE_S, Node

BURST: Final = 8  # puts close to each other, so that blocks are under way beside each other, and some wait for others
BURSTS: Final = 0.2  # of the puts; and always just before their node stops for a while
REFUSALS: Final = 6  # in a row of the first chunk that is not confirmed: then it begins anew
NAP_S: Final = 0.6  # between two things that a producer does, on average


class LogProducer(Producer):
    """Without a sequence: a message without a key whose put is unknown is never sent again. `dc`: it stays there; in
    others its keys are not known."""

    def __init__(self, name: str, nodes: LogNodes, chance: random.Random, queues: list[str], dc: str | None) -> None:
        super().__init__(name, nodes, chance, queues)
        self._dc = dc
        self._stalls: list[asyncio.Future[None]] = []  # kept, so that they are not forgotten

    def _message(self, delays: bool, keyed: bool) -> Sent:
        plan = cast(LogNodes, self._nodes).plan
        return colored(super()._message(delays and plan.delays, keyed), self._chance)

    async def put(self, queue: str, count: int, delays: bool = True) -> None:
        node = self._node()
        if node is None or not (self._maybe_stall(node) or self._chance.random() < BURSTS):
            await super().put(queue, count, delays)
            return
        tasks: list[asyncio.Future[list[Sent]]] = []
        for _ in range(BURST):
            tasks.append(asyncio.ensure_future(self._put(queue, [self._message(False, False)], node)))
            await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.001)))
        await asyncio.gather(*tasks)

    def _maybe_stall(self, node: Node) -> bool:
        nodes = cast(LogNodes, self._nodes)
        if nodes.history.calm_from_s < math.inf or self._chance.random() >= nodes.plan.stalls:
            return False
        self._stalls.append(asyncio.ensure_future(nodes.stall(node)))
        return True

    def _node(self) -> Node | None:
        return cast(LogNodes, self._nodes).near(self._dc)

    async def _put(self, queue: str, sent: list[Sent], node: Node | None = None) -> list[Sent]:
        chance = self._chance
        node = node if node in self._nodes.living else self._node()
        if node is None:
            await asyncio.sleep(1.0)
            return [one for one in sent if one.key is not None]
        messages = [NewMessage(one.body, one.attributes, one.delay_s, one.key) for one in sent]
        patience_s = PATIENCE_S if chance.random() < 0.8 else chance.uniform(0.0, 0.5)
        call, answers = await self._nodes.call(
            self.name, "put", queue, lambda service: service.put(queue, messages), patience_s, at=node, sent=tuple(sent)
        )
        call.puts = answers or []
        confirmed = {one.body for one, put in zip(sent, call.puts, strict=False) if isinstance(put, Put)}
        return [one for one in sent if one.key is not None and (one.body not in confirmed or chance.random() < 0.15)]


def colored(sent: Sent, chance: random.Random) -> Sent:
    """With what filters and ordered queues look at."""
    color = chance.choice((*COLORS, None))
    return msgspec.structs.replace(sent, attributes={**sent.attributes, **({"color": color} if color else {})})


class LogConsumer(Consumer):
    """The node that it asks stops now and then in the middle of an ack."""

    async def ack(self, queue: str, receipts: list[str], times: int = 1) -> None:
        nodes = cast(LogNodes, self._nodes)
        if nodes.history.calm_from_s == math.inf and self._chance.random() < nodes.plan.stalls / 2:
            stalled = asyncio.ensure_future(nodes.stall(nodes.pick()))
            await super().ack(queue, receipts, times)
            await stalled
        else:
            await super().ack(queue, receipts, times)


class Chunk(msgspec.Struct, frozen=True):
    sequence: int
    sent: tuple[Sent, ...]
    data: bytes


class SequencedProducer(LogProducer):
    def __init__(
        self, name: str, nodes: LogNodes, chance: random.Random, queue: str, window: int, dc: str | None
    ) -> None:
        super().__init__(name, nodes, chance, [queue], dc)
        self._queue = queue
        self._window = window
        self._begin()

    def _begin(self) -> None:
        self._producer = self._chance.randbytes(16)
        self._sequence = 0
        self._refused = 0
        self._waiting: list[Chunk] = []
        self._done: list[Chunk] = []

    async def work(self, end_s: float) -> None:
        loop, chance = self._nodes.world.loop, self._chance
        while loop.time() < end_s and not self.stopped:
            while len(self._waiting) < self._window:
                self._waiting.append(self._chunk(chance.choice((1, 1, 3, 8))))
            await self._send()
            if self._done and chance.random() < 0.15:
                await self._append(chance.choice(self._done[-5:]))
            await asyncio.sleep(chance.expovariate(1 / NAP_S))

    def _chunk(self, count: int) -> Chunk:
        self._sequence += 1
        name = f"{self._producer.hex()[:6]}/{self._sequence}"
        sent = tuple(msgspec.structs.replace(self._message(False, False), key=f"{name}/{at}") for at in range(count))
        attributes = [dict(one.attributes) or None for one in sent]
        data = chunks.pack([one.body for one in sent], attributes, self._producer, self._sequence)
        return Chunk(self._sequence, sent, data)

    async def _send(self) -> None:
        """All that waits, one close behind the other; what was not confirmed waits on."""
        chance, waiting = self._chance, list(self._waiting)
        tasks: list[asyncio.Task[Call | None]] = []
        node = self._node() if chance.random() < 0.7 else None
        for chunk in waiting:
            tasks.append(asyncio.ensure_future(self._append(chunk, node)))
            if chance.random() < 0.1:
                tasks.append(asyncio.ensure_future(self._append(chunk, node)))
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.003)))
        calls = [call for call in await asyncio.gather(*tasks) if call is not None]
        confirmed = {sent.body for call in calls for sent in call.sent if call.puts}
        self._done += [chunk for chunk in waiting if chunk.sent[0].body in confirmed]
        self._waiting = [chunk for chunk in self._waiting if chunk.sent[0].body not in confirmed]
        self._refused = self._refused + 1 if calls and calls[0].error in ("invalid", "conflict") else 0
        if self._refused >= REFUSALS:
            self._begin()

    async def _append(self, chunk: Chunk, node: Node | None = None) -> Call | None:
        """None: there is nobody to be asked."""
        queue, chance = self._queue, self._chance
        at = node if node in self._nodes.living else self._node()
        if at is None:
            await asyncio.sleep(1.0)
            return None
        patience_s = PATIENCE_S if chance.random() < 0.8 else chance.uniform(0.0, 0.5)
        self._maybe_stall(at)
        call, appended = await self._nodes.call(
            self.name, "put", queue, lambda service: service.append(queue, chunk.data),  # type: ignore[attr-defined]
            patience_s, at=at, sent=chunk.sent,
        )  # fmt: skip
        if appended is not None:
            known = appended.extent != ""
            call.puts = [
                Put(f"{appended.extent}:{appended.first + index}" if known else "", appended.duplicate)
                for index in range(len(chunk.sent))
            ]
        return call
