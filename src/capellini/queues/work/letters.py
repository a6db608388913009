"""Moves between queues: to the dead letters, and back. A crash anywhere ends with the message in exactly one place.

    source: hidden ──▶ moving ──────────────────────────▶ finished
    target:                └─▶ put with the key "moved:queue/generation/id" ─┘

The source is marked first, so that nobody delivers it meanwhile; the keyed put happens once, however often it is tried;
then the source is finished. A move that was begun and not finished is taken up by whoever visits the bucket after a
while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from capellini.model.errors import CapelliniError, NotFound
from capellini.model.message import Entry
from capellini.queues.work.bucket import MOVE_AGAIN_MS, ON_THE_WAY, moved, taken_up, unmoved
from capellini.queues.work.place import Dropped, Place
from capellini.queues.work.reading import Buried, Reading
from capellini.queues.work.runs import RETURNING

AT_ONCE: Final = 64  # moves beside each other: each is some rounds to the store, which they share
AGAIN_MS: Final = 30_000  # a letter whose target does not exist waits so long before it is tried again
MOVED_TTL_S: Final = 8 * 86_400.0  # a move's key outlives any outage that a move may span


class Origin(NamedTuple):
    """Where a moved message came from."""

    queue: str
    generation: int
    id: int

    def __str__(self) -> str:
        return f"{self.queue}/{self.generation}/{self.id}"


def origin_of(text: str) -> Origin:
    queue, generation, id = text.rsplit("/", 2)
    return Origin(queue, int(generation), int(id))


def move_key(origin: Origin) -> str:
    """Under which a moved message is put: its key row tells where it is now."""
    return f"moved:{origin}"


PutMoved = Callable[
    [str, str, Entry], Awaitable[None]
]  # target queue, key, entry: a keyed put there; NotFound if there is no such queue


async def carry(place: Place, reading: Reading, buried: Buried, put_moved: PutMoved, carried: set[int]) -> int:
    """Carry messages that are marked as moving to where they go; how many arrived. `carried`: ids that somebody in this
    node is carrying now, who will see to them."""
    bucket = buried.first // place.size
    base = bucket * place.size
    start, end = buried.first - base, buried.first - base + buried.count
    if buried.stuck and carried.issuperset(range(buried.first, buried.first + buried.count)):
        return 0  # not stuck: slow
    cell = place.cell(bucket)
    began_ms = place.now_ms()
    try:
        if buried.stuck:
            runs = await cell.change(lambda now: taken_up(now, start, end, began_ms))
            if runs:
                place.guards["move resumed"] += 1
        else:
            runs = [run for run in await cell.read() if run.start < end and start < run.end and run.kind in ON_THE_WAY]
    except Dropped:
        return 0
    back = {
        base + slot: run.kind == RETURNING
        for run in runs
        for slot in range(max(run.start, start), min(run.end, end))
        if base + slot not in carried
    }
    carried |= back.keys()
    try:
        return await _carry_all(place, reading, back, put_moved, began_ms)
    finally:
        carried -= back.keys()


async def _carry_all(
    place: Place, reading: Reading, back: Mapping[int, bool], put_moved: PutMoved, began_ms: int
) -> int:
    """Many beside each other: they share fsyncs and compare-and-sets."""
    ids = list(back)
    arrived = 0
    for at in range(0, len(ids), AT_ONCE):
        if place.now_ms() - began_ms > MOVE_AGAIN_MS // 2:
            began_ms = place.now_ms()
            if not await _renewed(place, ids[at:], began_ms):
                return arrived  # somebody else has taken them up
        moves = [_carry_one(place, reading, id, back[id], put_moved) for id in ids[at : at + AT_ONCE]]
        done = await asyncio.gather(*moves, return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException) and not isinstance(one, Dropped):  # dropped: it was finished by another
                raise one
        arrived += sum(one is True for one in done)
    return arrived


async def _renewed(place: Place, ids: Sequence[int], now_ms: int) -> bool:
    """A long pile takes longer than a move may: what is left of it is not stuck yet."""
    base = ids[0] - ids[0] % place.size
    try:
        kept = await place.cell(ids[0] // place.size).change(
            lambda runs: taken_up(runs, ids[0] - base, ids[-1] + 1 - base, now_ms + MOVE_AGAIN_MS)
        )
    except Dropped:
        return False
    return bool(kept)


async def _carry_one(place: Place, reading: Reading, id: int, back: bool, put_moved: PutMoved) -> bool:
    slot = id % place.size
    cell = place.cell(id // place.size)
    block = await reading.block_of(id)
    if block is None:
        raise CapelliniError(f"message {id} of {place.name} is marked as moving but was never written")
    entry = block.read()[id - block.first]
    target = origin_of(entry.origin).queue if back and entry.origin else place.options.dead_letters
    here = Origin(place.name, place.generation, id)
    letter = msgspec.structs.replace(entry, delay_ms=0, origin=None if back else str(here))
    try:
        if not target:
            raise NotFound("there is no dead-letter queue any more")
        await put_moved(target, move_key(here), letter)
    except NotFound:
        at_ms = place.now_ms() + AGAIN_MS
        await cell.change(lambda runs: unmoved(runs, slot, slot + 1, at_ms))
        await reading.lower(id // place.size, at_ms)
        return False
    done = await cell.change(lambda runs: moved(runs, slot, slot + 1))
    if done:
        if back:
            place.events.replayed(place.name, place.generation, [(id, 1)], detail=target)
        else:
            place.events.dead(place.name, place.generation, [(id, 1)], detail=target)
    await reading.settled(id // place.size)
    return bool(done)
