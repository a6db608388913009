"""Moves between queues: to the dead letters, and back. A crash anywhere ends with the message in exactly one place.

    source: hidden ──▶ moving ──────────────────────────▶ finished
    target:                └─▶ put with the key "moved:queue/generation/id" ─┘

The source is marked first, so that nobody delivers it meanwhile; the keyed put happens once, however often it is tried;
then the source is finished. A move that was begun and not finished is taken up by whoever visits the bucket after a
while.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from capellini.model.errors import CapelliniError, NotFound
from capellini.model.message import Entry
from capellini.queues.work.bucket import ON_THE_WAY, moved, taken_up, unmoved
from capellini.queues.work.place import Dropped, Place
from capellini.queues.work.reading import Buried, Reading
from capellini.queues.work.runs import RETURNING

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


PutMoved = Callable[
    [str, str, Entry], Awaitable[None]
]  # target queue, key, entry: a keyed put there; NotFound if there is no such queue


async def carry(place: Place, reading: Reading, buried: Buried, put_moved: PutMoved) -> int:
    """Carry messages that are marked as moving to where they go; how many arrived."""
    bucket = buried.first // place.size
    base = bucket * place.size
    start, end = buried.first - base, buried.first - base + buried.count
    cell = place.cell(bucket)
    try:
        if buried.stuck:
            runs = await cell.change(lambda now: taken_up(now, start, end, place.now_ms()))
            if runs:
                place.guards["move resumed"] += 1
        else:
            runs = [run for run in await cell.read() if run.start < end and start < run.end and run.kind in ON_THE_WAY]
        arrived = 0
        for run in runs:
            for slot in range(max(run.start, start), min(run.end, end)):
                back = run.kind == RETURNING
                arrived += await _carry_one(place, reading, base + slot, back, put_moved)
    except Dropped:
        return 0
    return arrived


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
        await put_moved(target, f"moved:{here}", letter)
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
