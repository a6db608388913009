"""The admin of a simulated run of log queues: makes, seeks, changes and deletes groups, brings dead letters back, and
all that the admin of other kinds does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from capellini.model import chunks
from capellini.proof.admin import Admin
from capellini.proof.history import Call, Sent
from capellini.proof.log_calls import Grouped, LogCalls
from capellini.proof.log_plan import LogPlan
from capellini.proof.plan import MOST_VISIBILITY_S
from capellini.queues.log.scaling import Plan as ScalingPlan

Act = Callable[[Any], Coroutine[Any, Any, Any]]


class LogAdmin(Admin):
    @property
    def _groups(self) -> list[str]:
        return list(cast(LogPlan, self._plan).groups)

    async def create(self, queue: str) -> Call:
        call = await super().create(queue)
        for group in self._groups:
            await self._create_group(queue, group)
        return call

    async def _create_group(self, queue: str, group: str) -> None:
        """Until it is there, or its queue is not."""
        wanted = cast(LogPlan, self._plan).groups[group]
        while True:
            call = await self._grouped(
                "create_group", queue, group,
                lambda service: service.make_group(queue, group, wanted.start, wanted.options),
                {**wanted.options, "start": wanted.start},
            )  # fmt: skip
            if call.good or call.error in ("conflict", "not_found"):
                return
            if call.error == "paused":
                await self.resume(queue)
            await asyncio.sleep(0.2)

    async def _grouped(self, op: str, queue: str, group: str, act: Act, options: dict[str, Any]) -> Call:
        call, made = await self._nodes.call("admin", op, f"{queue}@{group}", act, options=options)
        if isinstance(made, Grouped):
            call.options = {**call.options, **msgspec.structs.asdict(made)}
        return call

    async def _purge(self, queue: str) -> None:
        """Groups outlive it: each is a reader of the new generation."""
        await super()._purge(queue)
        for group in self._groups:
            await self._known_group(queue, group)

    async def _known_group(self, queue: str, group: str) -> None:
        await self._grouped("known_group", queue, group, lambda service: service.known_group(queue, group), {})

    async def _seek(self, queue: str) -> None:
        chance, group = self._chance, self._chance.choice(self._groups)
        world = self._nodes.world
        back_s = chance.uniform(0.0, 8.0)
        now_at = self._nodes.history.epoch_s + world.loop.time()
        to = chance.choice(("earliest", "earliest", "latest", now_at - back_s))
        await self._grouped(
            "seek", queue, group, lambda service: service.grouped(service.seek_group(queue, group, to)), {"to": to}
        )

    async def _regroup(self, queue: str) -> None:
        group = self._chance.choice(self._groups)
        call = await self._grouped("delete_group", queue, group, lambda service: service.end_group(queue, group), {})
        if call.good:
            await asyncio.sleep(self._chance.choice((0.0, 0.5)))
            await self._create_group(queue, group)

    async def _change_group(self, queue: str) -> None:
        group = self._chance.choice(self._groups)
        options = {"visibility_s": self._chance.uniform(1.0, MOST_VISIBILITY_S)}
        await self._grouped(
            "change_group",
            queue,
            group,
            lambda service: service.change_group(queue, group, options),
            options,
        )

    async def _merge_dead(self, queue: str) -> None:
        group, count = self._chance.choice(self._groups), self._chance.choice((None, 3))
        await self._grouped("merge_dead", queue, group, lambda service: service.merge_dead(queue, group, count), {})

    async def _purge_dead(self, queue: str) -> None:
        group = self._chance.choice(self._groups)
        await self._grouped("purge_dead", queue, group, lambda service: service.purge_dead(queue, group), {})

    async def _change(self, queue: str) -> None:
        options: dict[str, Any] = {"visibility_s": self._chance.uniform(1.0, MOST_VISIBILITY_S)}
        if self._chance.random() < 0.5:
            options["level"] = self._chance.choice(("quorum", "all"))
        await self._do("change", queue, lambda service: service.change(queue, options), options=options)

    async def _scale(self, queue: str) -> None:
        """As if the load had risen, fallen, or moved."""
        chance, names = self._chance, [node.name for node in self._nodes.living]
        plan = ScalingPlan({name: chance.choice((0, 1, 1, 2, 3)) for name in names if chance.random() < 0.8})
        await self._do("scale", queue, lambda service: cast(LogCalls, service).scale(queue, plan))

    async def _look(self, queue: str) -> None:
        group = self._chance.choice(self._groups)
        looks: list[Act] = [
            lambda service: service.groups(queue),
            lambda service: service.show_group(queue, group),
            lambda service: service.extents(queue),
            lambda service: service.peek(f"{queue}@{group}", 10, ""),
            lambda service: service.statistics(f"{queue}@{group}"),
            lambda service: service.routes(queue, group),
        ]
        await self._do("look", queue, self._chance.choice(looks))

    async def _bad(self, queue: str) -> None:
        self._nonsense += 1
        group = self._groups[0]
        big = Sent(f"bad.{self._nonsense}".encode() + b"x" * 2_000)
        late = chunks.pack([f"bad.{self._nonsense}".encode()], None, b"p" * 16, 7)
        requests: list[tuple[str, str, Act, tuple[Sent, ...]]] = [
            ("put", "half a chunk", lambda service: service.append(queue, late[:50]), ()),
            ("put", "a chunk that is none", lambda service: service.append(queue, b"x" * 60), ()),
            ("put", "a body over the limit", lambda service: service.append(queue, chunks.pack([big.body])), (big,)),
            ("put", "a sequence without its beginning", lambda service: service.append(queue, late),
             (Sent(late[-len(f"bad.{self._nonsense}") :]),)),
            ("get", "a group that is none", lambda service: service.get(f"{queue}@nobody", 1), ()),
            ("get", "no count", lambda service: service.get(f"{queue}@{group}", 0), ()),
            ("seek", "a time that is none", lambda service: service.seek_group(queue, group, "yesterday"), ()),
            ("change_group", "an option that is none",
             lambda service: service.change_group(queue, group, {"speed": 1}), ()),
        ]  # fmt: skip
        op, bad, act, sent = self._chance.choice(requests)
        await self._nodes.call("admin", op, queue, act, bad=bad, sent=sent)
