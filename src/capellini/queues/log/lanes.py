"""Lanes: how delayed messages that are due enter the log, exactly once, whatever crashes. One for each shard in which
they waited.

    log_delayed (queue, generation, home) ▸ shard   state: MessagePack [era, sequence, chunk, ids], token

    (0) know the row ─▶ (1) take some ─▶ (2) compare-and-set: sequence + 1, the chunk, the ids ─▶ (3) append the chunk
    ─▶ (4) ack the ids

- A chunk's producer is its lane, its sequence that of the row: the log takes it once, however often and by whomever it
  is appended (`sequences`). What it has is fixed in the row before anybody appends it. So whoever comes after a crash
  between (2) and (4) appends the very same again, or hears that it is there.
- The ids in the row are those that were moved and are not known to be acked. Who takes one of them again acks it, and
  no more. They are kept in the row until an ack, or a cancel, says that they are gone.
- Of two nodes that believe to hold a shard, one is refused at (2): it gives back what it took, and reads the row. It
  must not move what it took before it read: another may have moved, acked and forgotten that. Who knew the row before
  it took, and finds it the same at (2), took nothing that anybody has moved since; and what was acked before is not
  handed out by the shard's one holder.
- A row's chunk has arrived before the next (2), and before any extent is dropped (`settle`): an extent that is gone
  has nothing of a chunk that is still in hand. So when the log has forgotten the producer (its extent was dropped), the
  chunk is not there; once its row says that it is bound to nowhere, it never comes there, and the chunk goes under a
  new producer: the next era.
- A lane that is idle takes its chunk out of the row.

The cost: one compare-and-set, one block and one ack for each batch, not for each message. A key for each message would
be simpler, and one compare-and-set, and one producer in an extent's memory, for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final
from uuid import UUID

import msgspec

from capellini.model import chunks
from capellini.model.errors import Conflict, Invalid, NotFound, Unavailable
from capellini.model.log import Appended
from capellini.model.message import Delivery
from capellini.model.service import Done, Problem
from capellini.queues.cell import Cell
from capellini.queues.log.extents import ALL_HOMES
from capellini.queues.log.place import LogPlace
from capellini.queues.log.sequences import bind, read_bound
from capellini.queues.timed.positions import id_text, parse_id
from capellini.store.interface import Key, Slice, Value
from capellini.store.schema import LOG_DELAYED

BATCH: Final = 1_000  # messages of a chunk
BATCH_BYTES: Final = 256 * 1024  # of a chunk, one message at least: it is in a compare-and-set, too
ERAS: Final = 5  # attempts of a chunk; each is lost only to somebody who bound its producer
NOWHERE: Final = "-"  # the extent that a producer is bound to which is never used again
EXPIRED_S: Final = 86_400  # rows of an ended generation are kept for a day

Settling = Callable[[Sequence[str]], Awaitable[list[Done | Problem]]]


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """What a lane has in hand. `chunk` empty: all has arrived. `ids`: moved, and perhaps not acked."""

    era: int = 0
    sequence: int = 0
    chunk: bytes = b""
    ids: tuple[bytes, ...] = ()


def producer_of(shard: int, era: int) -> bytes:
    """A queue's generation is in the key of the producer's row already."""
    return blake2b(f"delayed:{shard}:{era}".encode(), digest_size=16).digest()


def packed(messages: Sequence[Delivery], shard: int, era: int, sequence: int) -> bytes:
    attributes = [one.attributes or None for one in messages]
    return chunks.pack([one.body for one in messages], attributes, producer_of(shard, era), sequence)


def renamed(chunk: bytes, producer: bytes, sequence: int) -> bytes:
    """The same messages as another chunk."""
    head = chunks.head_of(chunk)
    return chunks.pack(chunks.bodies_of(chunk, head), chunks.attributes_of(chunk, head), producer, sequence)


def batches(messages: Sequence[Delivery]) -> Iterator[list[Delivery]]:
    batch: list[Delivery] = []
    size = 0
    for message in messages:
        if batch and (len(batch) >= BATCH or size + len(message.body) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message.body)
    if batch:
        yield batch


class Overtaken(Unavailable):
    """Another node has changed the row since it was seen here."""


class Lane:
    """One shard's way into the log. `append` confirms a chunk; `ack` and `cancel` are of the timed queue, by receipt
    and by id."""

    def __init__(
        self,
        place: LogPlace,
        shard: int,
        append: Callable[[bytes], Awaitable[Appended]],
        ack: Settling,
        cancel: Settling,
    ) -> None:
        self._place, self._shard, self._guards = place, shard, place.guards
        self._cell = cell_of(place, shard)
        self._append, self._ack, self._cancel = append, ack, cancel
        self._state: Carried | None = None  # as the row was when it was last seen
        self._looks = 0
        self._arrived: Carried | None = None  # as the row was when its chunk was known to be in the log
        self._left: set[bytes] = set()  # of its ids, those that are not known to be acked
        self._lock = asyncio.Lock()
        self.used_s = 0.0  # when it last had something to do; for whoever has it

    @property
    def rests(self) -> bool:
        """Is there nothing to be tidied up?"""
        return self._state is not None and not self._state.chunk and not self._left

    async def know(self) -> None:
        """The row is known when this returns. Raises StoreError."""
        async with self._lock:
            if self._state is None:
                await self._look()

    @property
    def known(self) -> int | None:
        """Which look at the row what is known is from; None: nothing is."""
        return None if self._state is None else self._looks

    async def carry(self, taken: Sequence[Delivery], known: int) -> None:
        """All of these into the log. `known`: as it was when they were taken. Raises CapelliniError: then some of them
        are still to be moved."""
        async with self._lock:
            if self.known != known:
                raise Overtaken("another node moved some meanwhile, perhaps these: nothing was changed")
            state = await self._ready()
            again = [one for one in taken if parse_id(one.id).bytes in self._left]
            fresh = [one for one in taken if parse_id(one.id).bytes not in self._left]
            if again:
                self._guards["delayed message was moved before"] += len(again)
                await self._acked(again)
            for batch in batches(fresh):
                ids = tuple(parse_id(one.id).bytes for one in batch)
                sequence = state.sequence + 1
                chunk = packed(batch, self._shard, state.era, sequence)
                state = await self._change(state, Carried(state.era, sequence, chunk, (*sorted(self._left), *ids)))
                state = await self._arrive(state)
                await self._acked(batch)

    async def rest(self) -> None:
        """Nothing is in hand when this returns. Raises CapelliniError."""
        async with self._lock:
            state = await self._ready()
            if self._left:
                ids = sorted(self._left)
                answers = await self._cancel([id_text(UUID(bytes=id)) for id in ids])
                gone = {id for id, one in zip(ids, answers, strict=True) if _is_gone(one)}
                self._guards["delayed message is known to be gone"] += len(gone)
                self._left -= gone
            if state.chunk or len(state.ids) != len(self._left):
                await self._change(state, Carried(state.era, state.sequence, b"", tuple(sorted(self._left))))

    async def settle(self, seen: Carried) -> None:
        """What is in hand has arrived, and the row says so. `seen`: the row as it was read just now; what this lane
        knows may be older."""
        async with self._lock:
            if self._state != seen:
                self._state = None
            state = await self._ready()
            if state.chunk:
                await self._change(state, Carried(state.era, state.sequence, b"", state.ids))

    async def _ready(self) -> Carried:
        """The row as it is; what it has in hand has arrived."""
        state = await self._look() if self._state is None else self._state
        if state.chunk and state is not self._arrived:
            self._guards["delayed batch appended again"] += 1
            state = await self._arrive(state)
        return state

    async def _arrive(self, state: Carried) -> Carried:
        for _ in range(ERAS):
            try:
                await self._append(state.chunk)
            except (Invalid, Conflict):
                if not await self._forgotten(state):
                    continue  # it was bound meanwhile
                self._guards["delayed batch under a new producer"] += 1
                era = state.era + 1
                chunk = renamed(state.chunk, producer_of(self._shard, era), 1)
                state = await self._change(state, Carried(era, 1, chunk, state.ids))
            else:
                self._arrived = state
                return state
        raise Unavailable("the log forgets this producer again and again: try again")

    async def _forgotten(self, state: Carried) -> bool:
        """Has the log forgotten this producer, for good? Then its row says so from now on: whoever was about to bind it
        elsewhere, since it still knew where it had been, is refused. False: somebody bound it before."""
        producer = producer_of(self._shard, state.era)
        seen = await read_bound(self._place, producer)
        try:
            await self._append(state.chunk)
        except (Invalid, Conflict):
            return await bind(self._place, producer, seen, NOWHERE, 0)
        return False

    async def _change(self, seen: Carried, after: Carried) -> Carried:
        def command(now: Carried) -> tuple[Carried, None]:
            if now != seen:
                self._guards["lane was another's"] += 1
                raise Overtaken("another node moves these messages: nothing was changed")
            return after, None

        self._state = None
        await self._cell.change(command)
        self._know(after)
        return after

    async def _look(self) -> Carried:
        state = await self._cell.read()
        self._looks += 1
        self._know(state)
        return state

    def _know(self, state: Carried) -> None:
        self._state, self._left = state, set(state.ids)

    async def _acked(self, messages: Sequence[Delivery]) -> None:
        """What is not acked for sure comes again, or is asked for later."""
        answers = await self._ack([one.receipt for one in messages])
        done = [one for one, answer in zip(messages, answers, strict=True) if isinstance(answer, Done)]
        self._left -= {parse_id(one.id).bytes for one in done}


def _is_gone(answer: Done | Problem) -> bool:
    return isinstance(answer, Done) or answer.error == NotFound.name


# The rows


def cell_of(place: LogPlace, shard: int, ttl_s: int | None = None) -> Cell[Carried]:
    return Cell(
        place.store, place.clock, place.random, LOG_DELAYED, _partition(place), (shard,), ("state",), _decode, _encode,
        ttl_s=ttl_s, sync=not place.store.alone,  # one log: durable with the chunk that follows
    )  # fmt: skip


def _partition(place: LogPlace) -> Key:
    return (*place.partition, place.home or ALL_HOMES)


async def read_lanes(place: LogPlace) -> dict[int, Carried]:
    """By shard."""
    found: dict[int, Carried] = {}
    after: Key | None = None
    while True:
        page = await place.store.read(Slice(LOG_DELAYED, _partition(place), after=after))
        for row in page.rows:
            (shard,) = row.key
            assert isinstance(shard, int)
            found[shard] = _decode(row.values)
        if not page.more:
            return found
        after = page.rows[-1].key


async def expire_lanes(place: LogPlace) -> None:
    """Of an ended generation: the rows go some time."""
    for shard, carried in (await read_lanes(place)).items():
        if carried != Carried():
            await cell_of(place, shard, EXPIRED_S).change(lambda _: (Carried(), None))


def _decode(values: dict[str, Value]) -> Carried:
    state = values.get("state")
    return msgspec.msgpack.decode(state, type=Carried) if isinstance(state, bytes) else Carried()


def _encode(carried: Carried) -> dict[str, Value]:
    return {"state": msgspec.msgpack.encode(carried)}
