"""The clients of a simulated run: producers that repeat, consumers that are slow, forget, or insist on old receipts."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from capellini.model.message import Delivery, NewMessage
from capellini.model.service import Done, ExtendItem, NackItem, Problem, Put
from capellini.proof.history import Call, Sent
from capellini.proof.nodes import PATIENCE_S, Nodes
from capellini.proof.plan import MOST_DELAY_S, MOST_VISIBILITY_S

RETRIES: Final = 3  # of a keyed put
OLD_RECEIPTS: Final = 50  # that a consumer remembers to try again


class Producer:
    delayed = 0.15  # so many messages have a delay
    most_delay_s = MOST_DELAY_S

    def __init__(self, name: str, nodes: Nodes, chance: random.Random, queues: list[str]) -> None:
        self.name = name
        self._nodes = nodes
        self._chance = chance
        self._queues = queues
        self._sent = 0
        self.stopped = False

    async def work(self, end_s: float) -> None:
        loop = self._nodes.world.loop
        while loop.time() < end_s and not self.stopped:
            await self.put(self._chance.choice(self._queues), self._chance.choice((1, 1, 3, 8, 15)))
            await asyncio.sleep(self._chance.expovariate(1 / 0.6))

    async def put(self, queue: str, count: int, delays: bool = True) -> None:
        chance = self._chance
        keyed = chance.random() < 0.25
        sent = [self._message(delays, keyed and at < 3) for at in range(count)]
        again = [one for one in sent if one.key is not None]
        twice = [self._later(queue, again)] if again and chance.random() < 0.3 else []
        await asyncio.gather(self._put(queue, sent), *twice)
        for _ in range(RETRIES):
            if not again or self._nodes.history.calm_from_s <= self._nodes.world.loop.time():
                return
            await asyncio.sleep(chance.choice((0.0, 0.1, 1.0, 5.0)))
            again = await self._put(queue, again)

    async def _later(self, queue: str, sent: list[Sent]) -> None:
        """The same puts, while the first ones are still on their way."""
        await asyncio.sleep(self._chance.choice((0.0, 0.005, 0.02, 0.5)))
        await self._put(queue, sent)

    async def _put(self, queue: str, sent: list[Sent]) -> list[Sent]:
        """Those that must, or may as well, be put again."""
        chance = self._chance
        messages = [NewMessage(one.body, one.attributes, one.delay_s, one.key) for one in sent]
        patience_s = PATIENCE_S if chance.random() < 0.8 else chance.uniform(0.0, 0.5)
        call, answers = await self._nodes.call(
            self.name, "put", queue, lambda service: service.put(queue, messages), patience_s, sent=tuple(sent)
        )
        if answers is not None:
            call.puts = answers
        again = []
        for at, one in enumerate(sent):
            confirmed = at < len(call.puts) and isinstance(call.puts[at], Put)
            if one.key is not None and (not confirmed or chance.random() < 0.15):
                again.append(one)
        return again

    def _message(self, delays: bool, keyed: bool) -> Sent:
        chance = self._chance
        self._sent += 1
        name = f"{self.name}.{self._sent}"
        attributes = {"of": name} if chance.random() < 0.3 else {}
        delay_s = chance.uniform(0.1, self.most_delay_s) if delays and chance.random() < self.delayed else 0.0
        return Sent(name.encode(), attributes, delay_s, f"k{name}" if keyed else None)


class Consumer:
    def __init__(self, name: str, nodes: Nodes, chance: random.Random, queues: list[str]) -> None:
        self.name = name
        self._nodes = nodes
        self._chance = chance
        self._queues = queues
        self._old: list[tuple[str, str]] = []
        self.stopped = False

    async def work(self, end_s: float) -> None:
        loop = self._nodes.world.loop
        while loop.time() < end_s and not self.stopped:
            queue = self._chance.choice(self._queues)
            deliveries = await self._get(queue)
            if deliveries:
                await self._handle(queue, deliveries)
            if self._old and self._chance.random() < 0.2:
                await self._insist()
            await asyncio.sleep(self._chance.expovariate(1 / 0.3))

    async def _get(self, queue: str) -> list[Delivery]:
        chance = self._chance
        visibility_s = chance.choice((None, chance.uniform(0.3, MOST_VISIBILITY_S)))
        patience_s = PATIENCE_S if chance.random() < 0.8 else chance.uniform(0.0, 1.0)
        count, wait_s = chance.choice((1, 1, 5, 10, 30)), chance.choice((0.0, 0.5, 2.0))
        return await self.get(queue, count, wait_s, visibility_s, patience_s)

    async def get(
        self,
        queue: str,
        count: int,
        wait_s: float,
        visibility_s: float | None,
        patience_s: float = PATIENCE_S,
        hangs_up: float = 0.5,
    ) -> list[Delivery]:
        call, deliveries = await self._nodes.call(
            self.name,
            "get",
            queue,
            lambda service: service.get(queue, count, wait_s, visibility_s),
            patience_s,
            hangs_up,
            count=count,
            wait_s=wait_s,
        )
        call.deliveries = deliveries or []
        return call.deliveries

    async def _handle(self, queue: str, deliveries: list[Delivery]) -> None:
        """What a consumer may do with what it got, in groups."""
        chance = self._chance
        groups: dict[str, list[str]] = {}
        ways = ("ack", "ack", "ack", "ack", "nack", "extend", "slow", "forget", "twice")
        one_way = chance.choice(ways) if chance.random() < 0.6 else None
        for delivery in deliveries:
            groups.setdefault(one_way or chance.choice(ways), []).append(delivery.receipt)
            if len(self._old) < OLD_RECEIPTS:
                self._old.append((queue, delivery.receipt))
            else:
                self._old[chance.randrange(OLD_RECEIPTS)] = (queue, delivery.receipt)
        for way, receipts in groups.items():
            await asyncio.sleep(chance.expovariate(1 / 0.3))
            if way in ("ack", "twice"):
                await self.ack(queue, receipts, 2 if way == "twice" else 1)
            elif way == "nack":
                await self.nack(queue, receipts, chance.choice((None, 0.0, chance.uniform(0.1, MOST_DELAY_S))))
            elif way == "extend":
                await self.extend(queue, receipts, chance.uniform(0.2, MOST_VISIBILITY_S))
                await asyncio.sleep(chance.uniform(0.0, 3.0))
                await self.ack(queue, receipts)
            elif way == "slow":
                await asyncio.sleep(chance.uniform(0.5, MOST_VISIBILITY_S + 1.0))
                await self.ack(queue, receipts)

    async def _insist(self) -> None:
        """An old receipt, on whatever."""
        queue, receipt = self._chance.choice(self._old)
        match self._chance.choice(("ack", "nack", "extend")):
            case "ack":
                await self.ack(queue, [receipt])
            case "nack":
                await self.nack(queue, [receipt], 0.0)
            case _:
                await self.extend(queue, [receipt], 1.0)

    async def ack(self, queue: str, receipts: list[str], times: int = 1) -> None:
        for attempt in range(times + 1):
            call = await self._use("ack", queue, receipts, (), lambda service: service.ack(queue, receipts))
            done = [one for one in call.results if isinstance(one, (Done, Problem))]
            if done and attempt + 1 >= times:
                return

    async def nack(self, queue: str, receipts: list[str], delay_s: float | None) -> None:
        items = [NackItem(receipt, delay_s) for receipt in receipts]
        await self._use(
            "nack", queue, receipts, tuple(delay_s for _ in items), lambda service: service.nack(queue, items)
        )

    async def extend(self, queue: str, receipts: list[str], seconds: float) -> None:
        items = [ExtendItem(receipt, seconds) for receipt in receipts]
        await self._use(
            "extend", queue, receipts, tuple(seconds for _ in items), lambda service: service.extend(queue, items)
        )

    async def _use(self, op: str, queue: str, receipts: list[str], seconds: tuple[float | None, ...], act: Any) -> Call:
        patience_s = PATIENCE_S if self._chance.random() < 0.9 else self._chance.uniform(0.0, 0.5)
        call, results = await self._nodes.call(
            self.name, op, queue, act, patience_s, receipts=tuple(receipts), seconds=seconds
        )
        call.results = results or []
        return call
