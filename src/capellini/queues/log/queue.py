"""A log queue in one node: what a caller may do with one generation of it.

Any node takes any request. Puts go to an extent that this node writes (`writing`); a group's messages come from the
owners of its extents, here or at other nodes; acks go to the owner that delivered.

    put, append ─▶ writers ─▶ extents ◀─ owners here            ◀─┐
                                      ◀─ owners at other nodes  ◀─┴─ pull, get, settle, ack, nack, extend
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeVar

import msgspec

from capellini.model import chunks
from capellini.model.dues import text_of
from capellini.model.errors import CapelliniError, Conflict, Invalid, StoreError, Unavailable
from capellini.model.log import Appended, GroupInfo, LogParcel, Settle, Settled
from capellini.model.message import Delivery, Entry, NewMessage, Peeked, message_bytes, whole_ms
from capellini.model.service import Done, ExtendItem, NackItem, Problem, Put
from capellini.queues.assignments import liking
from capellini.queues.lease import Watcher
from capellini.queues.log import receipts
from capellini.queues.log.extents import Extents
from capellini.queues.log.groups import Group, Groups, dead_letters_of, group_options, start_of, wants
from capellini.queues.log.looking import Looking, Place, place_of
from capellini.queues.log.owner import MakeQueue
from capellini.queues.log.parcels import GROUP
from capellini.queues.log.peers import PREFIX, Ask, Peers
from capellini.queues.log.place import LogPlace
from capellini.queues.log.placing import shown
from capellini.queues.log.readers import Readers
from capellini.queues.log.scaling import Scaling
from capellini.queues.log.settling import FOREIGN, Settling
from capellini.queues.log.turns import Turn
from capellini.queues.log.writing import Writers
from capellini.queues.resting import rest
from capellini.queues.work.place import Gone

T = TypeVar("T")
OTHERS_EVERY_S: Final = 0.5  # other nodes are asked first so often, so that their extents are not left behind
POLL_S: Final = 0.1  # between looks for what other nodes have, while nothing is here
LEASED_S: Final = 3.0  # a put waits so long for this node's lease
LEASED_LOOK_S: Final = 0.02
SEND_TRIES: Final = 3  # nodes that a put is sent on to, until one takes it
LOOK_S: Final = 0.5  # between looks at nothing: what comes here wakes who waits
WOKEN: Final = 32  # consumers of a group that are woken at a time; those who get something wake the next
LOOK_MOST_S: Final = 1.5  # between looks of one of very many consumers that wait: together they look often enough
MOST_BODY: Final = 4_194_304  # of what was checked before against the queue's own limit: what options allow at most
CHUNK_BYTES: Final = 1024 * 1024  # of messages that are put together
GET_BYTES: Final = 4 * 1024 * 1024  # of one get of single messages
MOVE_TRIES: Final = 8  # each is lost only if its extent is dropped between a crash and the next attempt
STALE: Final = Problem("stale", "the receipt is of an earlier delivery, or the message is gone")
UNSAID: Final = 0  # the generation in a receipt that a client made of a parcel

Current = Callable[[bool], Awaitable[None]]  # for puts? Raises when this generation must not be used (Gone, Paused)


class LogQueue:
    """Made by `LogKeeper.queue(record)`; do not keep it across calls. Calls raise Gone (of `work.place`) when this
    generation is over: look the queue up again, as for work queues."""

    def __init__(
        self,
        place: LogPlace,
        extents: Extents,
        writers: Writers,
        groups: Groups,
        readers: Readers,
        peers: Peers,
        current: Current,
        make_queue: MakeQueue,
        watcher: Watcher,
        holds: bool,
    ) -> None:
        self._watcher, self._holds = watcher, holds
        self.place, self.extents, self.writers = place, extents, writers
        self.groups, self.readers = groups, readers
        self._peers, self._current, self._make_queue = peers, current, make_queue
        self._waiting: dict[asyncio.Event, str] = {}  # and for which group; in the order of coming
        self._pulls: Counter[str] = Counter()  # how many wait, by group
        self._others_s: dict[str, float] = {}  # by group: when other nodes were asked
        self._stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        writers.on_opened.append(lambda writer: writer.tail.on_confirmed.append(self.wake))
        self._looking: asyncio.Task[Any] | None = None
        self._settling = Settling(place, extents, groups, readers, self._call)
        self.looking = Looking(place, extents, groups, readers, self._call)
        self.scaling = Scaling(place, extents, writers, watcher, self._call)
        self.looking.told = self.scaling.told

    async def ready(self) -> None:
        """The extents were looked at once."""
        if not self.extents.looked:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self.extents.look())
                self._looking.add_done_callback(_heard)
            await asyncio.shield(self._looking)

    def wake(self) -> None:
        """Something may be had: whoever waits looks again. Not all of a thousand at once for one message."""
        left = dict.fromkeys(self._pulls, WOKEN)
        for nudge, group in self._waiting.items():
            if left[group]:
                left[group] -= 1
                nudge.set()

    # Putting

    async def append(self, chunk: bytes, forwarded: bool = False, turn: Turn | None = None) -> Appended:
        """One chunk, checked here. `turn`: it keeps its place among its producer's. Raises Invalid, TooLarge,
        Unavailable, or Unknown: it may be there."""
        return await self._checked(chunk, MOST_BODY if forwarded else self.place.options.body_limit, forwarded, turn)

    async def append_moved(self, chunk: bytes) -> Appended:
        """Messages that were taken before, whatever the queue's limits are now."""
        return await self._checked(chunk, MOST_BODY, limited=False)

    async def _checked(
        self, chunk: bytes, body_limit: int, forwarded: bool = False, turn: Turn | None = None, limited: bool = True
    ) -> Appended:
        """`limited`: refused when the queue is full. What another node sent on was not, there."""
        head = chunks.check(chunk, body_limit)
        await self._current(True)
        await self.ready()
        if not self._holds:
            if limited:
                self.writers.require_room(head.size)
            return await self._sent_on(chunk, head)
        if not self.place.lease.valid():
            await self._leased()
        if turn is not None:
            await turn.come()
        return await self.writers.append(chunk, head, forwarded, turn, limited and not forwarded)

    async def _leased(self) -> None:
        """A node that just started, or lost its lease, has one again soon; if not, the writers say so."""
        clock = self.place.clock
        deadline_s = clock.elapsed_s() + LEASED_S
        while not self.place.lease.valid() and clock.elapsed_s() < deadline_s:
            await clock.sleep(LEASED_LOOK_S)

    async def _sent_on(self, chunk: bytes, head: chunks.Head) -> Appended:
        """From a process that writes no extents: to a node that does, the same one for all chunks of a producer."""
        nodes = [node for node in self._watcher.live() if self._watcher.address(node) and node != self.place.node]
        of = head.producer.hex() if head.producer != chunks.NO_PRODUCER else str(self.place.random.random())
        for node in sorted(nodes, key=lambda node: liking(of, node), reverse=True)[:SEND_TRIES]:
            try:
                return await self.forward(node, chunk)
            except Unavailable:
                self.place.guards["put sent on to another node"] += 1
        raise Unavailable("no node takes puts of log queues: start one with capellini serve")

    async def put(self, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        """One answer per message, in order; messages were checked before. With a key each is a producer of its own. A
        problem that is Gone says that this generation was over for it; others of the call may be in it."""
        plain = [index for index, message in enumerate(messages) if message.key is None]
        results: dict[int, Put | Problem] = {}

        async def together(indexes: list[int]) -> None:
            made = [messages[index] for index in indexes]
            answer = await self._appended([m.body for m in made], [m.attributes or None for m in made])
            for place, index in enumerate(indexes):
                results[index] = answer if isinstance(answer, Problem) else _put(answer, place)

        async def once(index: int, message: NewMessage) -> None:
            answer = await self._appended([message.body], [message.attributes or None], f"key:{message.key}")
            results[index] = answer if isinstance(answer, Problem) else _put(answer, 0)

        keyed = [once(index, message) for index, message in enumerate(messages) if message.key is not None]
        sizes = [message_bytes(messages[index]) for index in plain]
        parts = [together(plain[start:end]) for start, end in chunks.cut(sizes, CHUNK_BYTES)]
        for result in await asyncio.gather(*parts, *keyed, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return [results[index] for index in range(len(messages))]

    async def _appended(
        self, bodies: list[bytes], attributes: list[dict[str, str] | None], key: str = ""
    ) -> Appended | Problem:
        producer = blake2b(key.encode(), digest_size=16).digest() if key else chunks.NO_PRODUCER
        try:
            return await self.append(chunks.pack(bodies, attributes, producer, 1 if key else 0))
        except CapelliniError as error:  # of these messages alone: others of the same call are perhaps there by now
            return Problem.of(error)

    async def put_moved(self, key: str, entry: Entry, group: str = "") -> None:
        """A move into this queue, once per key; for one group alone if one is named."""
        attributes = {**(entry.attributes or {}), GROUP: group} if group else entry.attributes
        for again in range(MOVE_TRIES):
            answer = await self._appended([entry.body], [attributes], f"moved:{key}" + f"#{again}" * bool(again))
            if not isinstance(answer, Problem):
                return
            if answer.error == Gone.name:
                raise Gone(answer.says)
            if answer.error != Conflict.name or again == MOVE_TRIES - 1:
                raise answer.raised()
            self.place.guards["move begun anew: its extent is gone"] += 1  # it was perhaps never in it

    async def replicas(self, extent: str) -> tuple[str, ...]:
        """Where an extent's blocks lie, as far as the store tells."""
        return await shown(self.place, extent)

    # Groups

    async def create_group(self, name: str, start: str | float, options: Mapping[str, Any]) -> GroupInfo:
        checked = group_options(options)
        start_ms = start_of(self.place, start)
        await self._current(False)
        if wants(self.place, checked).delivery_limit:
            await self._make_queue(dead_letters_of(self.place.name, name))
        group = await self.groups.create(name, start_ms, checked)
        if group.start_ms != start_ms:
            return self.groups.info(group, "the group was there before, and goes on where it is: seek moves it")
        return self.groups.info(group, await self._kept(start_ms))

    async def change_group(self, name: str, options: Mapping[str, Any]) -> GroupInfo:
        group = await self.groups.change(name, options)
        if wants(self.place, group.options).delivery_limit:
            await self._make_queue(dead_letters_of(self.place.name, name))
        return self.groups.info(group)

    async def seek_group(self, name: str, to: str | float) -> GroupInfo:
        start_ms = start_of(self.place, to)
        says = await self._kept(start_ms)
        return self.groups.info(await self.groups.seek(name, start_ms), says)

    async def _kept(self, start_ms: int) -> str:
        """Is what was asked for still there?"""
        await self.ready()
        known = self.extents.known()
        oldest_ms = min([extent.opened_ms for extent in known], default=0)
        if not start_ms or not oldest_ms or start_ms >= oldest_ms:
            return ""
        return f"messages before {text_of(oldest_ms / 1000)} are not kept (any more): it starts at the oldest there is"

    # Reading

    async def pull(
        self, group: str, count: int, most_bytes: int, wait_s: float, visibility_s: float | None = None
    ) -> list[LogParcel]:
        """Up to so many messages and about so many bytes; at least one if there is one within the wait."""
        place = self.place
        deadline_s = place.clock.elapsed_s() + wait_s
        visibility_ms = None if visibility_s is None else whole_ms(visibility_s)
        nudge = asyncio.Event()
        parcels: list[LogParcel] | None = None
        self._waiting[nudge] = group
        self._pulls[group] += 1
        try:
            while True:
                nudge.clear()
                parcels = None
                await self._current(False)
                await self.ready()
                found = await self.groups.used(group)
                parcels = await self._taken(found, count, most_bytes, visibility_ms)
                left_s = deadline_s - place.clock.elapsed_s()
                if parcels or left_s <= 0 or self._stopping:
                    return parcels
                await rest(place.clock, nudge, min(left_s, self._rest_s(found)))
        finally:
            self._gone(nudge, woken=parcels != [] or nudge.is_set())

    def _gone(self, nudge: asyncio.Event, woken: bool) -> None:
        """It waits no more. `woken`: instead of others, who may find more than it took, or what it left."""
        group = self._waiting.pop(nudge)
        self._pulls[group] -= 1
        if woken and self._pulls[group] >= WOKEN:
            self.wake()
        if not self._pulls[group]:
            del self._pulls[group]

    def _rest_s(self, group: Group) -> float:
        rest_s = POLL_S if self.readers.nodes(group) else LOOK_S
        rest_s = min(rest_s * max(1.0, self._pulls[group.name] / WOKEN), LOOK_MOST_S)
        at_ms = self.readers.next_ms(group)
        return rest_s if at_ms is None else min(rest_s, max(0.0, (at_ms - self.place.now_ms()) / 1000) + 0.001)

    async def _taken(self, group: Group, count: int, most_bytes: int, visibility_ms: int | None) -> list[LogParcel]:
        """What is taken for a caller who is gone by then is given back."""
        taking = self._spawn(self._take(group, count, most_bytes, visibility_ms))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(lambda done: self._release(group, done))
            raise

    def _release(self, group: Group, taking: asyncio.Task[list[LogParcel]]) -> None:
        if taking.cancelled() or taking.exception() is not None or not taking.result():
            return
        self.place.guards["taken for nobody, and given back"] += 1
        self._spawn(self._give_back(group.name, [settle_of(parcel, "release") for parcel in taking.result()]))

    async def _give_back(self, group: str, items: list[Settle]) -> None:
        try:
            await self.settle(group, items)
        except CapelliniError:
            self.place.guards["not given back: it comes when its visibility ends"] += 1

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take(self, group: Group, count: int, most_bytes: int, visibility_ms: int | None) -> list[LogParcel]:
        now_s = self.place.clock.elapsed_s()
        found: list[LogParcel] = []
        fresh = now_s - self._others_s.get(group.name, -1e9) < OTHERS_EVERY_S
        if fresh or not self.readers.nodes(group):
            found = await self.readers.take(group, count, most_bytes, visibility_ms)
        if not found and (others := sorted(self.readers.nodes(group))):
            self._others_s[group.name] = now_s
            found = await self._take_elsewhere(others, group, count, most_bytes, visibility_ms)
        if not found and not fresh:
            found = await self.readers.take(group, count, most_bytes, visibility_ms)
        return found

    async def _take_elsewhere(
        self, nodes: list[str], group: Group, count: int, most_bytes: int, visibility_ms: int | None
    ) -> list[LogParcel]:
        """From the first of the other nodes that has something. What one handed out whose answer was lost comes back
        when its visibility ends."""
        self.place.random.shuffle(nodes)
        for node in nodes:
            try:
                data = await self._call(node, "take", [group.name, count, most_bytes, visibility_ms])
            except StoreError:
                self.place.guards["node passed over"] += 1
                continue
            if found := msgspec.msgpack.decode(data, type=list[LogParcel]):
                self.readers.believe(found, node)
                return found
        return []

    # Settling

    async def settle(self, group: str, items: Sequence[Settle]) -> list[Settled]:
        """One answer per item: what of it was settled; the rest was stale."""
        await self._current(False)
        return await self._settling.settle(group, items)

    # Single messages

    async def get(self, group: str, count: int, wait_s: float, visibility_s: float | None) -> list[Delivery]:
        parcels = await self.pull(group, count, GET_BYTES, wait_s, visibility_s)
        return [delivery for parcel in parcels for delivery in deliveries_of(self.place.generation, parcel)]

    async def ack(self, group: str, texts: Sequence[str]) -> list[Done | Problem]:
        return await self._singly(group, "ack", texts, [None] * len(texts))

    async def nack(self, group: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        delays = [None if item.delay_s is None else whole_ms(item.delay_s) for item in items]
        return await self._singly(group, "nack", [item.receipt for item in items], delays)

    async def extend(self, group: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        lives = [whole_ms(item.visibility_s) for item in items]
        return await self._singly(group, "extend", [item.receipt for item in items], lives)

    async def _singly(
        self, group: str, verb: str, texts: Sequence[str], values: Sequence[int | None]
    ) -> list[Done | Problem]:
        results: list[Done | Problem] = [STALE] * len(texts)
        items: dict[tuple[object, ...], tuple[Settle, list[int]]] = {}
        sent_ms = self.place.now_ms()
        for index, text in enumerate(texts):
            try:
                receipt = receipts.parse(text)
            except Invalid as error:
                results[index] = Problem.of(error)
                continue
            if receipt.generation in (self.place.generation, UNSAID):
                of = (receipt.extent, receipt.reader, receipt.epoch, receipt.delivery, receipt.first, receipt.count)
                key = (*of, receipt.code, values[index])  # all that it proves: another reader may have these numbers
                item, indexes = items.setdefault(key, (receipt.settle(verb, values[index]), []))
                if indexes:
                    item.ranges.append((receipt.number, 1))
                indexes.append(index)
        answers = await self.settle(group, [item for item, _ in items.values()])
        for (item, indexes), answer in zip(items.values(), answers, strict=True):
            done = {number for first, count in answer.ranges for number in range(first, first + count)}
            at = None if verb == "ack" or item.value_ms is None else (sent_ms + item.value_ms) / 1000
            for (number, _), index in zip(item.ranges, indexes, strict=True):
                if answer is FOREIGN and receipts.parse(texts[index]).generation == UNSAID:
                    continue  # most likely of an earlier generation: stale
                if answer.error:
                    results[index] = Problem(answer.error, answer.says)
                elif number in done:
                    done.discard(number)  # the same receipt twice in one call: the second is stale
                    results[index] = Done(at)
        return results

    async def peek_all(self, count: int, after: Place | None) -> list[Peeked]:
        """All that is kept, whatever groups there are."""
        await self.extents.look()
        return await self.looking.peek_all(count, after)

    # Other nodes

    async def _call(self, node: str, operation: str, arguments: list[Any]) -> bytes:
        ask = msgspec.msgpack.encode(Ask(self.place.generation, arguments))
        return await self._peers.call(node, self.place.name, PREFIX + operation, ask)

    async def forward(self, node: str, chunk: bytes) -> Appended:
        return msgspec.msgpack.decode(await self._call(node, "append", [chunk]), type=Appended)

    async def serve(self, operation: str, arguments: list[Any]) -> Any:
        """What another node asks: of what is read and written here only. `operation` without its prefix."""
        if operation == "take":
            group, count, most_bytes, visibility_ms = arguments
            await self.ready()
            return await self.readers.take(await self.groups.used(group), count, most_bytes, visibility_ms)
        if operation == "settle":
            return await self._settling.settle_here(arguments[0], msgspec.convert(arguments[1], list[Settle]))
        if operation == "append":
            return await self.append(arguments[0], forwarded=True)
        if operation == "load":
            return self.scaling.loads()
        if operation == "written":
            return self.looking.written_here()
        if operation == "views":
            return await self.looking.views_here(await self.groups.live(arguments[0]))
        if operation == "peek":
            group, count, after = arguments
            found = await self.groups.live(group)
            return await self.looking.peek_here(found, count, place_of(after) if after else None)
        raise Invalid(f"{operation!r} is no operation of log queues")

    # The end

    def stop_waiting(self) -> None:
        """Long polls end now, with nothing: the node is going away."""
        self._stopping = True
        for nudge in self._waiting:
            nudge.set()


def _heard(task: asyncio.Task[Any]) -> None:
    """All who waited for it may be gone when it fails."""
    if not task.cancelled():
        task.exception()


def _put(answer: Appended, place: int) -> Put:
    return Put(f"{answer.extent}:{answer.first + place}" if answer.extent else "", answer.duplicate)


def settle_of(parcel: LogParcel, verb: str, value_ms: int | None = None) -> Settle:
    """Of all messages of a delivery."""
    return Settle(
        parcel.extent, parcel.reader, parcel.epoch, parcel.delivery, parcel.first, parcel.count, parcel.code, verb,
        [(parcel.first, parcel.count)], value_ms,
    )  # fmt: skip


def deliveries_of(generation: int, parcel: LogParcel) -> list[Delivery]:
    """A parcel as single messages."""
    found: list[Delivery] = []
    names = receipts.receipts_of(generation, parcel)
    number = parcel.first
    for head in chunks.heads_of(parcel.chunks):
        bodies = chunks.bodies_of(parcel.chunks, head)
        for body, attributes in zip(bodies, chunks.attributes_of(parcel.chunks, head), strict=True):
            found.append(
                Delivery(
                    id=f"{parcel.extent}:{number}",
                    receipt=next(names),
                    body=body,
                    attributes=attributes or {},
                    put_at=parcel.put_ms / 1000,
                    deliveries=parcel.deliveries,
                    visible_at=parcel.visible_ms / 1000,
                )
            )
            number += 1
    return found
