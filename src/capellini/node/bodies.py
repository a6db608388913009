"""The journal that carries bodies: what is put into a queue with `journal=bodies` is told with all it has.

    put ──▶ the queue: confirmed ──▶ `capellini.bodies`, a log queue of the nodes' own: confirmed ──▶ the caller

Work and timed queues forget a message when it is finished. Here each one stays, in order, for the retention of that log
queue, so that an archive can have all of them exactly once: what was confirmed to the caller is there, once. It costs
what a second put costs, and who asks for it waits for both.

A message there has the body and attributes of the one that was put, and attributes that say which that is (OF, …).

What fails, and what then happens
- The second put fails: the first is not taken back, and the caller is told that it is unknown. Put again without a key
  it is another message, as always.
- Put again with its key it is told again under the same name, which the log queue recognises: there once.
- What moves in from elsewhere (dead letters) is told where it was put first, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from capellini.model.errors import CapelliniError, NotFound, Unknown
from capellini.model.message import NewMessage
from capellini.model.options import BODIES, OFF
from capellini.model.service import Problem, Put
from capellini.queues.catalog import Catalog, QueueRecord
from capellini.queues.log.keeper import LogKeeper

OPTIONS: Final[dict[str, Any]] = {"journal": OFF, "retention_s": 604_800.0, "body_limit": 4_194_304}
OF: Final = "capellini.queue"
GENERATION: Final = "capellini.generation"
ID: Final = "capellini.id"


class Bodies:
    def __init__(self, catalog: Catalog, keeper: LogKeeper) -> None:
        self._catalog, self._keeper = catalog, keeper

    async def tell(
        self, record: QueueRecord, messages: Sequence[NewMessage], results: Sequence[Put | Problem]
    ) -> list[Put | Problem]:
        """What the caller is told: as it was, but for what could not be told here."""
        answers = list(results)
        done = [(index, result) for index, result in enumerate(results) if isinstance(result, Put)]
        if not done:
            return answers
        copies = [_copy(record, messages[index], result.id) for index, result in done]
        try:
            told = await self._keeper.queue(await self._record()).put(copies)
        except CapelliniError as error:
            told = [Problem.of(error)] * len(done)
        for (index, _), one in zip(done, told, strict=True):
            if isinstance(one, Problem):
                answers[index] = Problem.of(Unknown(f"it was put, and is not in the journal: {one.says}"))
        return answers

    async def _record(self) -> QueueRecord:
        try:
            return await self._catalog.live(BODIES)
        except NotFound:
            return await self._catalog.create(BODIES, "log", OPTIONS)


def _copy(record: QueueRecord, message: NewMessage, id: str) -> NewMessage:
    attributes = {**message.attributes, OF: record.name, GENERATION: str(record.generation), ID: id}
    key = None if message.key is None else f"{record.name}/{record.generation}/{id}"
    return NewMessage(message.body, attributes, key=key)
