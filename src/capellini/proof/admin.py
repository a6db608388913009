"""The admin of a simulated run: pauses, purges, deletes, changes, looks, and asks for nonsense."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from capellini.model.message import NewMessage
from capellini.model.service import Service
from capellini.proof.history import Call, Sent
from capellini.proof.nodes import Nodes
from capellini.proof.plan import MOST_VISIBILITY_S, Plan

T = TypeVar("T")


class Admin:
    def __init__(self, nodes: Nodes, chance: random.Random, plan: Plan) -> None:
        self._nodes = nodes
        self._chance = chance
        self._plan = plan
        self._nonsense = 0

    async def work(self, end_s: float) -> None:
        loop = self._nodes.world.loop
        while self._plan.admin and loop.time() < end_s:
            await asyncio.sleep(self._chance.expovariate(1 / self._plan.admin_every_s))
            await getattr(self, f"_{self._chance.choice(self._plan.admin)}")(
                self._chance.choice(list(self._plan.queues))
            )

    async def create(self, queue: str) -> Call:
        """Until it is there: at the start and at the end of a run."""
        options = self._plan.queues[queue]
        while True:
            call = await self._do(
                "create", queue, lambda service: service.create(queue, "work", options), options=options
            )
            if call.good or call.error == "conflict":  # conflict: its options were changed since
                return call
            await asyncio.sleep(0.2)

    async def resume(self, queue: str) -> None:
        while not (await self._do("pause", queue, lambda service: service.pause(queue, False, False))).good:
            await asyncio.sleep(0.2)

    async def _do(self, op: str, queue: str, act: Callable[[Service], Coroutine[Any, Any, T]], **asked: Any) -> Call:
        call, _ = await self._nodes.call("admin", op, queue, act, **asked)
        return call

    async def _pause(self, queue: str) -> None:
        puts, gets = self._chance.choice(((True, None), (None, True), (True, True)))
        await self._do("pause", queue, lambda service: service.pause(queue, puts, gets))
        await asyncio.sleep(self._chance.uniform(0.0, 3.0))
        await self._do("pause", queue, lambda service: service.pause(queue, False, False))

    async def _purge(self, queue: str) -> None:
        await self._do("purge", queue, lambda service: service.purge(queue))

    async def _delete(self, queue: str) -> None:
        call = await self._do("delete", queue, lambda service: service.delete(queue))
        if call.good:
            await asyncio.sleep(self._chance.choice((0.0, 0.5)))
            await self.create(queue)

    async def _change(self, queue: str) -> None:
        options: dict[str, Any] = {"visibility_s": self._chance.uniform(1.0, MOST_VISIBILITY_S)}
        if self._plan.queues[queue].get("dead_letters"):
            options["delivery_limit"] = self._chance.choice((1, 2, 3))
        await self._do("change", queue, lambda service: service.change(queue, options), options=options)

    async def _redrive(self, queue: str) -> None:
        if self._plan.queues[queue].get("dead_letters"):
            await self._do("redrive", queue, lambda service: service.redrive(queue, self._chance.choice((None, 3))))

    async def _move_repair(self, queue: str) -> None:
        await self._do("move_repair", queue, lambda service: service.move_repair(queue, self._chance.randrange(3)))

    async def _look(self, queue: str) -> None:
        looks: list[Callable[[Service], Coroutine[Any, Any, object]]] = [
            lambda service: service.statistics(queue),
            lambda service: service.peek(queue),
            lambda service: service.buckets(queue),
            lambda service: service.pointers(queue),
            lambda service: service.message(queue, "3"),
            lambda service: service.queues(),
        ]
        await self._do("look", queue, self._chance.choice(looks))

    async def _bad(self, queue: str) -> None:
        self._nonsense += 1
        body = f"bad.{self._nonsense}".encode()
        requests: list[tuple[str, str, Callable[[Service], Coroutine[Any, Any, Any]], Sent | None]] = [
            ("get", "no count", lambda service: service.get(queue, 0), None),
            ("get", "a negative wait", lambda service: service.get(queue, 1, -1.0), None),
            ("ack", "no receipts", lambda service: service.ack(queue, []), None),
            ("ack", "a receipt that is none", lambda service: service.ack(queue, ["x" * 38]), None),
            ("put", "no messages", lambda service: service.put(queue, []), None),
            (
                "change",
                "an option that cannot change",
                lambda service: service.change(queue, {"bucket_size": 11}),
                None,
            ),
            (
                "put",
                "a body over the limit",
                lambda service: service.put(queue, [NewMessage(body + b"x" * 2_000)]),
                Sent(body + b"x" * 2_000),
            ),
            (
                "put",
                "a negative delay",
                lambda service: service.put(queue, [NewMessage(body, delay_s=-1.0)]),
                Sent(body, delay_s=-1.0),
            ),
        ]
        op, bad, act, sent = self._chance.choice(requests)
        call, answers = await self._nodes.call("admin", op, queue, act, bad=bad, sent=(sent,) if sent else ())
        if op == "put" and answers:
            call.puts = answers
        elif op == "ack" and answers:
            call.results = answers
