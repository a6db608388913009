"""Delayed messages of log queues in a node: puts that wait, and the loop that moves what is due (`log.delaying`).

A loop of its own, since a turn of the log queues may take a while, and a message that is due should not: what is due
lies in the memory of its shard's holder, and looking there costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from capellini.model.dues import scheduled
from capellini.model.errors import CapelliniError
from capellini.model.message import NewMessage, check_message
from capellini.model.service import Problem, Put
from capellini.model.timed import Scheduled
from capellini.node.background import Background
from capellini.node.broker import Broker
from capellini.node.maintenance import Maintenance
from capellini.queues.catalog import QueueRecord
from capellini.queues.log.delaying import Delaying
from capellini.queues.log.keeper import LogKeeper
from capellini.queues.timed.keeper import TimedKeeper

LOOK_S: Final = 0.1  # between looks at what is due

PutNow = Callable[[Sequence[NewMessage]], Awaitable[list[Put | Problem]]]


class Delays:
    def __init__(self, broker: Broker, maintenance: Maintenance, timed: TimedKeeper, logs: LogKeeper) -> None:
        self._clock, self._lease = broker.clock, maintenance.lease
        self.delaying = Delaying(broker.clock, broker.catalog, timed, logs)
        self._background = Background(self._turns)
        maintenance.clear_others.append(self.delaying.clear)

    def start(self) -> None:
        self._background.start()

    async def stop(self) -> None:
        """Before shards and extents are given up."""
        await self._background.stop()
        await self.delaying.stop()

    async def _turns(self) -> None:
        while True:
            if self._lease.valid():
                self.delaying.turn()
            await self._clock.sleep(LOOK_S)

    # Putting

    def check(self, message: NewMessage, body_limit: int) -> None:
        """Raises Invalid or TooLarge."""
        if _is_later(message):
            scheduled(message, self._clock.now_s(), body_limit)
        else:
            check_message(message, body_limit)

    async def put(self, record: QueueRecord, messages: Sequence[NewMessage], put_now: PutNow) -> list[Put | Problem]:
        """Those that wait, and the others by `put_now`; all were checked. One answer per message, in order: Gone is
        one, too."""
        now_s = self._clock.now_s()
        later: dict[int, Scheduled] = {}
        for index, message in enumerate(messages):
            if _is_later(message):
                item = scheduled(message, now_s, record.options.body_limit)
                if item.due_ms > now_s * 1000:
                    later[index] = item
        soon = [index for index in range(len(messages)) if index not in later]
        if not later:
            return await put_now([_without_due(message) for message in messages])
        answers = await asyncio.gather(
            self._put_later(record, list(later.values())),
            _some(put_now, [_without_due(messages[index]) for index in soon]),
        )
        results: dict[int, Put | Problem] = {}
        for indexes, answer in zip((list(later), soon), answers, strict=True):
            results.update(zip(indexes, answer, strict=True))
        return [results[index] for index in range(len(messages))]

    async def _put_later(self, record: QueueRecord, items: Sequence[Scheduled]) -> list[Put | Problem]:
        try:
            return await self.delaying.put(record, items)
        except CapelliniError as error:
            return [Problem.of(error)] * len(items)


def _is_later(message: NewMessage) -> bool:
    return message.delay_s != 0 or message.due is not None


def _without_due(message: NewMessage) -> NewMessage:
    return NewMessage(message.body, message.attributes, key=message.key) if _is_later(message) else message


async def _some(put_now: PutNow, messages: Sequence[NewMessage]) -> list[Put | Problem]:
    return await put_now(messages) if messages else []
