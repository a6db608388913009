"""The calls of log queues in a simulated run: a node's own, told in the words of histories (`log_history`).

    get          parcels become deliveries; half of the runs ask for parcels, as streams do, the others for messages
    ack, …       receipts become ranges of parcels, or go as they came
    put          ids get the generation of the queue they are of
    groups       what was made is told with its generation and version

Dead letters lie in work queues: calls without a group are for these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from capellini.model import chunks
from capellini.model.log import AT, EARLIEST, Appended, GroupInfo, LogParcel, Settle, Settled, split_name
from capellini.model.message import Delivery, NewMessage
from capellini.model.service import Done, ExtendItem, NackItem, Problem, Put, QueueInfo
from capellini.node.log import LogBroker
from capellini.proof.log_history import Version, named, receipt_text
from capellini.proof.plan import MOST_VISIBILITY_S
from capellini.queues.catalog import QueueRecord
from capellini.queues.log.queue import LogQueue
from capellini.queues.log.receipts import parse, receipts_of
from capellini.queues.log.scaling import Plan

if TYPE_CHECKING:
    from capellini.proof.log_nodes import LogNode, LogNodes

T = TypeVar("T")
PULL_BYTES: Final = 100_000
STALE: Final = Problem("stale", "the receipt is of an earlier delivery, or the message is gone")
_GENERATION: Final[ContextVar[int]] = ContextVar("generation")  # of the queue that a call used, in its task


class Taken(msgspec.Struct, frozen=True):
    """What a consumer keeps of a message that it got."""

    parcel: LogParcel
    number: int
    receipt: str  # as the API has it


class Grouped(msgspec.Struct, frozen=True):
    """A group as a call left it, and of which generation of its queue."""

    generation: int
    version: int
    start_at: float


class LogCalls(LogBroker):
    def __init__(self, node: LogNode, nodes: LogNodes) -> None:
        super().__init__(node.work, node.keeper, node.delays, lambda name: "")
        self._work, self._nodes = node.work, nodes
        self.catalog = node.catalog

    async def _with(self, name: str, act: Callable[[QueueRecord, LogQueue], Awaitable[T]]) -> T:
        def noted(record: QueueRecord, queue: LogQueue) -> Awaitable[T]:
            _GENERATION.set(record.generation)
            return act(record, queue)

        return await super()._with(name, noted)

    # Queues

    async def create(self, name: str, kind: str, options: Mapping[str, Any]) -> QueueInfo:
        """Whatever kind is asked for: this run's queues are logs."""
        return await self._work.create(name, "log", options)

    async def change(self, name: str, options: Mapping[str, Any]) -> QueueInfo:
        return await self._work.change(name, options)

    async def pause(self, name: str, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        return await self._work.pause(name, puts, gets)

    async def purge(self, name: str) -> QueueInfo:
        return await self._work.purge(name)

    async def delete(self, name: str) -> None:
        await self._work.delete(name)

    # Putting

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        answers = await super().put(name, messages)
        return [self._placed(one, answer) for one, answer in zip(messages, answers, strict=True)]

    def _placed(self, message: NewMessage, answer: Put | Problem) -> Put | Problem:
        """The place is not known yet of what waits, and perhaps not any more of what came again."""
        if isinstance(answer, Problem):
            return answer
        place = "" if message.delay_s or not answer.id else named(_GENERATION.get(), answer.id)
        return msgspec.structs.replace(answer, id=place)

    async def append(self, queue: str, chunk: bytes) -> Appended:
        done = await super().append(queue, chunk)
        return msgspec.structs.replace(done, extent=named(_GENERATION.get(), done.extent)) if done.extent else done

    # Getting

    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]:
        if AT not in name:
            life_s = MOST_VISIBILITY_S if visibility_s is None else visibility_s  # not the 30 s of such a queue
            return await self._work.get(name, count, wait_s, life_s)
        if self._nodes.singly:
            return [self._told(one) for one in await super().get(name, count, wait_s, visibility_s)]
        queue, group = split_name(name)
        parcels = await self.pull(queue, group, count, PULL_BYTES, wait_s, visibility_s)
        return [delivery for parcel in parcels for delivery in self._opened(parcel)]

    def _told(self, one: Delivery) -> Delivery:
        receipt = parse(one.receipt)
        id = named(receipt.generation, one.id)
        parcel = LogParcel(
            receipt.extent, receipt.reader, receipt.epoch, receipt.delivery, receipt.first, receipt.count, 0, 0, 0,
            receipt.code, b"",
        )  # fmt: skip
        text = receipt_text(named(receipt.generation, receipt.reader), receipt.epoch, receipt.delivery, id)
        self._nodes.taken[text] = Taken(parcel, receipt.number, one.receipt)
        return msgspec.structs.replace(one, id=id, receipt=text)

    def _opened(self, parcel: LogParcel) -> list[Delivery]:
        generation = _GENERATION.get()
        heads = list(chunks.heads_of(parcel.chunks))
        bodies = [body for head in heads for body in chunks.bodies_of(parcel.chunks, head)]
        attributes = [one for head in heads for one in chunks.attributes_of(parcel.chunks, head)]
        if len(bodies) != parcel.count:
            self._nodes.history.broken.append(f"a parcel of {parcel.count} has {len(bodies)} messages")
        texts = receipts_of(generation, parcel)
        found: list[Delivery] = []
        for at, (body, own) in enumerate(zip(bodies, attributes, strict=True)):
            id = f"{named(generation, parcel.extent)}:{parcel.first + at}"
            receipt = receipt_text(named(generation, parcel.reader), parcel.epoch, parcel.delivery, id)
            self._nodes.taken[receipt] = Taken(parcel, parcel.first + at, next(texts))
            put_at, visible_at = parcel.put_ms / 1000, parcel.visible_ms / 1000
            found.append(Delivery(id, receipt, body, own or {}, put_at, parcel.deliveries, visible_at))
        return found

    # Settling

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        if AT not in name:
            return await self._work.ack(name, receipts)
        if self._nodes.singly:
            return await super().ack(name, self._texts(receipts))
        return await self._settle(name, "ack", receipts, None)

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        if AT not in name:
            return await self._work.nack(name, items)
        receipts, delay_s = [item.receipt for item in items], items[0].delay_s
        if self._nodes.singly:
            return await super().nack(name, [NackItem(text, delay_s) for text in self._texts(receipts)])
        return await self._settle(name, "nack", receipts, delay_s)

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        if AT not in name:
            return await self._work.extend(name, items)
        receipts, life_s = [item.receipt for item in items], items[0].visibility_s
        if self._nodes.singly:
            return await super().extend(name, [ExtendItem(text, life_s) for text in self._texts(receipts)])
        return await self._settle(name, "extend", receipts, life_s)

    def _texts(self, receipts: Sequence[str]) -> list[str]:
        return [self._nodes.taken[receipt].receipt for receipt in receipts]

    async def _settle(
        self, name: str, verb: str, receipts: Sequence[str], seconds: float | None
    ) -> list[Done | Problem]:
        """As a client does: what is of one delivery goes together."""
        queue, group = split_name(name)
        together: dict[int, list[Taken]] = defaultdict(list)
        for receipt in receipts:
            taken = self._nodes.taken[receipt]
            together[id(taken.parcel)].append(taken)
        items = [_settle_of(verb, some, seconds) for some in together.values()]
        until_s = self._clock.now_s() + (seconds or 0.0) if verb == "extend" else None
        answers = await self.settle(queue, group, items)
        results: dict[tuple[int, int], Done | Problem] = {}
        for some, answer in zip(together.values(), answers, strict=True):
            for taken in some:
                results[id(taken.parcel), taken.number] = _result(answer, taken.number, until_s)
        found = [self._nodes.taken[receipt] for receipt in receipts]
        return [results[id(taken.parcel), taken.number] for taken in found]

    # Groups

    async def grouped(self, work: Awaitable[GroupInfo]) -> Grouped:
        info = await work
        return Grouped(_GENERATION.get(), info.version, info.start_at)

    async def make_group(
        self, queue: str, group: str, start: str | float = EARLIEST, options: Mapping[str, Any] | None = None
    ) -> Grouped:
        return await self.grouped(self.create_group(queue, group, start, options))

    async def known_group(self, queue: str, group: str) -> Grouped:
        """As it goes on after a purge."""

        async def act(record: QueueRecord, opened: LogQueue) -> GroupInfo:
            return opened.groups.info(await opened.groups.live(group))

        return await self.grouped(self._with(queue, act))

    async def end_group(self, queue: str, group: str) -> Grouped:
        async def act(record: QueueRecord, opened: LogQueue) -> GroupInfo:
            return opened.groups.info(await opened.groups.delete(group))

        return await self.grouped(self._with(queue, act))

    async def readers(self, queue: str) -> dict[str, str]:
        """Of the groups that there are."""
        infos = await self.groups(queue)
        return {info.name: Version(_GENERATION.get(), info.version).of(info.name) for info in infos}

    # Extents

    async def scale(self, queue: str, plan: Plan) -> None:
        """As a manager does that has measured something."""

        async def act(record: QueueRecord, opened: LogQueue) -> None:
            await opened.extents.look()
            await opened.extents.set_plan(msgspec.json.encode(plan).decode())

        await self._with(queue, act)


def _settle_of(verb: str, some: list[Taken], value_s: float | None) -> Settle:
    parcel = some[0].parcel
    return Settle(
        parcel.extent, parcel.reader, parcel.epoch, parcel.delivery, parcel.first, parcel.count, parcel.code, verb,
        [(taken.number, 1) for taken in some], None if value_s is None else int(value_s * 1000),
    )  # fmt: skip


def _result(answer: Settled, number: int, until_s: float | None) -> Done | Problem:
    if answer.error:
        return Problem(answer.error, answer.says)
    done = any(first <= number < first + count for first, count in answer.ranges)
    return Done(until_s) if done else STALE
