"""The admin of a simulated run of timed queues: changes shard counts, cancels and moves, stops and starts shards."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from capellini.model.service import Put
from capellini.proof.admin import Admin
from capellini.proof.timed_checkers import done, possible
from capellini.proof.timed_nodes import TimedService


class TimedAdmin(Admin):
    _halted: set[tuple[str, int]]

    async def _reshard(self, queue: str) -> None:
        """Sometimes two at once: a shard may be put into that is retired before anybody worked it."""
        changes = [self._shards(queue, self._chance.choice((1, 2, 3, 4)), 0.0)]
        if self._chance.random() < 0.4:
            changes.append(self._shards(queue, 1, self._chance.uniform(0.05, 0.6)))
        await asyncio.gather(*changes)

    async def _shards(self, queue: str, shards: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        options = {"shards": shards}
        await self._do("change", queue, lambda service: service.change(queue, options), options=options)

    async def _look(self, queue: str) -> None:
        looks: list[Any] = [
            lambda service: service.statistics(queue),
            lambda service: service.peek(queue),
            lambda service: service.shards(queue),
        ]
        await self._do("look", queue, self._chance.choice(looks))

    async def _cancel(self, queue: str) -> None:
        if ids := self._some_ids(queue):
            await self._asked("cancel", queue, ids, (), lambda service: service.cancel(queue, ids))

    async def _move(self, queue: str) -> None:
        ids = self._some_ids(queue)
        if not ids:
            return
        chance = self._chance
        seconds = tuple(chance.choice((0.0, chance.uniform(0.1, 3.0), chance.uniform(3.0, 8.0))) for _ in ids)
        await self._asked("move", queue, ids, seconds, lambda service: service.move(queue, ids, seconds))

    async def _asked(self, op: str, queue: str, ids: tuple[str, ...], seconds: tuple[float, ...], act: Any) -> None:
        asked = self._nodes.call("admin", op, queue, act, ids=ids, seconds=seconds)
        (call, results), _ = await asyncio.gather(asked, self._interrupted())
        call.results = results or []

    async def _interrupted(self) -> None:
        """Sometimes a node crashes in the middle of it."""
        if not self._plan.node_trouble_every_s or self._chance.random() > 0.3:
            return
        await asyncio.sleep(self._chance.uniform(0.0, 0.02))
        node = self._nodes.pick()
        self._nodes.start_new()
        self._nodes.crash(node)

    def _some_ids(self, queue: str) -> tuple[str, ...]:
        """Of what was put lately: scheduled, just read, in flight, or gone. Often those that were asked for before and
        got no answer: what was begun then may go on."""
        doubtful = [
            id
            for call in self._nodes.history.calls[-60:]
            if call.op in ("cancel", "move") and call.queue == queue
            for index, id in enumerate(call.ids)
            if possible(call, index) and not done((call, index))
        ]
        if doubtful and self._chance.random() < 0.5:
            return tuple(dict.fromkeys(doubtful[-2:]))
        calls = [call for call in self._nodes.history.calls[-60:] if call.op == "put" and call.queue == queue]
        late = [
            (call.began_s + sent.delay_s, answer.id)
            for call in calls
            for sent, answer in zip(call.sent, call.puts, strict=False)
            if isinstance(answer, Put)
        ]
        late.sort(reverse=True)
        chosen = late[:12]
        return tuple(id for _, id in self._chance.sample(chosen, min(len(chosen), self._chance.choice((1, 2, 4)))))

    async def _halt(self, queue: str) -> None:
        shard = self._chance.randrange(2)
        await self._do("halt", queue, lambda service: _timed(service).halt(queue, shard, True))
        await asyncio.sleep(self._chance.uniform(0.0, 2.0))
        await self._do("halt", queue, lambda service: _timed(service).halt(queue, shard, False))

    async def start_all(self) -> None:
        """Whatever was stopped and could not be started again."""
        self._nodes.world.calm()
        for queue in self._plan.queues:
            for shard in range(2):
                for _ in range(20):
                    call = await self._do("halt", queue, lambda service: _timed(service).halt(queue, shard, False))  # noqa: B023
                    if call.good or call.error in ("invalid", "not_found"):
                        break
                    await asyncio.sleep(0.5)


def _timed(service: Any) -> TimedService:
    return cast(TimedService, service)
