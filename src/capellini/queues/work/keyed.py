"""Keys: the one mechanism that makes puts happen once. Idempotent puts use it, and so do moves between queues.

    key row (queue, generation, key) ──names──▶ id

A put with a key: claim the key row for a new id by compare-and-set, write the message under that id, and pin it by
compare-and-set, so that nobody can void it any more. Whoever comes later with the same key (a retry, any node, any time
in the window, also after the bucket was dropped) finds the id and settles what became of it before using another:

    the message is written      pin it, so that its slow writer cannot void it any more: that was the put
    it is not written           void the id by compare-and-set: it never becomes a message, the key may name a new id
    delivered, finished, moved  that was the put
    its bucket was dropped      the marker names the void ids: all others were puts

Keys of puts are those of a generation. Keys of moves outlive it (their rows are those of generation 0, and name the one
that they led to): a move that is repeated because nobody knew that it was done must not bring a message again that was
got and acked in a generation that was purged since. What was on its way then went with it. Who comes late, for a
generation that is over, and finds that the key names a later one knows nothing of what became of it there: it is asked
for there.
"""

from __future__ import annotations

from typing import Final

from capellini.model.errors import Unavailable, Unknown
from capellini.queues.cell import Cell
from capellini.queues.work.block import Packed
from capellini.queues.work.bucket import pinned, voided
from capellini.queues.work.place import Dropped, Gone, Place
from capellini.queues.work.putting import Putting
from capellini.queues.work.reading import Reading
from capellini.queues.work.runs import FRESH, VOID, Runs, pieces
from capellini.store.interface import Value
from capellini.store.schema import KEYS

MAX_TRIES: Final = 6
ALL_GENERATIONS: Final = 0
Named = tuple[int, int]  # generation and id
NOBODY: Final[Named] = (0, -1)


async def put_keyed(
    place: Place, putting: Putting, reading: Reading, key: str, packed: Packed, ttl_s: float, moved: bool = False
) -> tuple[int, bool]:
    """Put one message once: its id, and whether an earlier put with this key was it. `moved`: once for all generations;
    hardly ever was there an earlier one, so nobody looks first."""
    cell: Cell[Named] = Cell(
        place.store,
        place.clock,
        place.random,
        KEYS,
        (place.name, ALL_GENERATIONS if moved else place.generation, key),
        (),
        ("id", "state"),
        lambda values: named_in(values, place.generation),
        _moved_out if moved else _put_out,
        ttl_s=max(1, int(ttl_s)),
        sync=place.sync_first,
    )
    if moved:
        cell.learn({})  # a wrong guess is a refusal that shows who has the key, and an id for nothing
    named = NOBODY if moved else await cell.read()
    for _ in range(MAX_TRIES):
        if named != NOBODY and await _was_put(place, reading, *named):
            place.guards["key was used before"] += 1
            return named[1], True
        id, sent_at_s = await putting.reserve()
        mine = (place.generation, id)
        now_names = await cell.change(lambda seen: _claimed(seen, named, mine))  # noqa: B023
        if now_names != mine:
            named = now_names
            continue
        if await putting.write_as(id, packed, sent_at_s + place.options.repair_after_s / 2):
            try:
                pinned_now = await _pinned(place, id)
            except Unavailable as error:  # it is written: somebody may get it
                raise Unknown(f"the put may have been done: {error.says}") from error
            if pinned_now:
                place.events.put(place.name, place.generation, [(id, 1)])
                return id, False
            place.guards["written id of a key was void"] += 1
        named = mine
    raise Unavailable("the store is too slow to put this message in time: nothing was put, try again")


def _claimed(seen: Named, replaces: Named, mine: Named) -> tuple[Named, Named]:
    """The key names `mine` from now on, unless it names one that was not settled."""
    return (mine, mine) if seen in (NOBODY, replaces, mine) else (seen, seen)


async def _was_put(place: Place, reading: Reading, generation: int, id: int) -> bool:
    """Did this id become a message? If not, it never will."""
    if generation > place.generation:
        raise Gone("this queue was purged, and what is moved goes on in its next generation")
    if generation < place.generation:
        place.guards["move went with what was purged"] += 1
        return True
    slot = id % place.size
    cell = place.cell(id // place.size)
    try:
        if await reading.block_of(id) is not None:
            return await _pinned(place, id)
        never = await cell.change(lambda runs: _void(runs, slot))
    except Dropped as dropped:
        return not any(low <= slot < high for low, high in dropped.voided)
    if never:
        place.guards["unwritten id of a key voided"] += 1
    return not never


async def _pinned(place: Place, id: int) -> bool:
    """What is written under this id is a message, for good. False: somebody was faster to void it."""
    slot = id % place.size
    try:
        return await place.cell(id // place.size).change(lambda runs: pinned(runs, slot))
    except Dropped as dropped:
        return not any(low <= slot < high for low, high in dropped.voided)


def _void(runs: Runs, slot: int) -> tuple[Runs, bool]:
    (piece,) = pieces(runs, slot, slot + 1)
    return voided(runs, slot, slot + 1)[0], piece.kind in (FRESH, VOID)


def named_in(values: dict[str, Value], own: int) -> Named:
    id, state = values.get("id"), values.get("state")
    return (int(state) if isinstance(state, str) else own, id) if isinstance(id, int) else NOBODY


def _put_out(named: Named) -> dict[str, Value]:
    return {"id": named[1]}


def _moved_out(named: Named) -> dict[str, Value]:
    return {"id": named[1], "state": str(named[0])}
