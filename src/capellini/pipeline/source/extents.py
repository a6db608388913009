"""What of a log queue may be read now: its extents, and how far each is confirmed.

    sealed extent   to its end
    open, asked of a node that writes it    to what its writer has confirmed
    open, in Cassandra                      to what its last block says is confirmed (an idle writer adds an empty one)
    open, in a folder                       to the last block before the first gap: one process writes it, in order

The list keeps dropped extents for a day, so that whoever comes back knows whether it had read all of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from capellini.model.clock import RealClock
from capellini.model.errors import NotFound, Unavailable
from capellini.pipeline.source.reach import Reach, Record, queue_path
from capellini.queues.log.appending import PIPELINE
from capellini.queues.log.extents import ALL_HOMES, DROPPED, OPEN, SEALED
from capellini.queues.log.rows import Block, block_in
from capellini.store.interface import Key, Slice
from capellini.store.schema import LOG_BLOCKS, LOG_EXTENTS

LIST_PAGE: Final = 1_000
LOOK_BACK: Final = 2 * PIPELINE  # blocks at an open end among which a gap can be
DOUBT_S: Final = 15.0  # past any lease: by then an extent without a writer is sealed
LOOK_S: Final = 0.3
SHORT: Final = ("count", "confirmed", "put_ms")  # a block without its messages


class Known(msgspec.Struct, frozen=True):
    """An extent: messages 0 .. top-1 may be read, unless it is dropped."""

    name: str
    state: str
    top: int
    opened_ms: int
    doubtful: bool = False  # there is more in it than anybody has said is confirmed
    bytes: int | None = None  # once sealed, where that is known

    @property
    def dropped(self) -> bool:
        return self.state == DROPPED

    @property
    def finished(self) -> bool:
        """Nothing comes any more."""
        return self.state != OPEN


class Range(msgspec.Struct, frozen=True):
    """Messages first .. end-1 of an extent: what one task reads."""

    extent: str
    first: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.first


async def listed(reach: Reach, record: Record) -> list[Known]:
    """All extents by name, so by opening; the dropped ones that are still known among them. Behind a node, an open
    extent without a writer is looked at again for a while: a writer that says what is confirmed, or a sealer, comes."""
    clock = RealClock()
    deadline_s = clock.elapsed_s() + DOUBT_S
    while True:
        found = await _listed(reach, record)
        if not reach.node or not any(known.doubtful for known in found) or clock.elapsed_s() > deadline_s:
            return found
        await clock.sleep(LOOK_S)


async def _listed(reach: Reach, record: Record) -> list[Known]:
    views: dict[str, dict[str, Any]] = {}
    homes = {ALL_HOMES, *reach.homes}
    if reach.node:
        said = await reach.asked(queue_path(record.name, "/debug/extents"))
        views = {view["extent"]: view for view in said["extents"]}
        homes |= {view["home"] for view in views.values() if view["home"]}
    found = []
    for home in sorted(homes):
        for name, values in await _rows(reach, record, home):
            if (known := await _known(reach, record, name, values, views.get(name))) is not None:
                found.append(known)
    return sorted(found, key=lambda known: known.name)


async def _rows(reach: Reach, record: Record, home: str) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    after: Key | None = None
    while True:
        partition = (record.name, record.generation, home)
        page = await reach.rows.read(Slice(LOG_EXTENTS, partition, after=after, limit=LIST_PAGE))
        found += [(str(row.key[0]), row.values) for row in page.rows]
        if not page.more:
            return found
        after = page.rows[-1].key


async def _known(
    reach: Reach, record: Record, name: str, values: dict[str, Any], view: dict[str, Any] | None
) -> Known | None:
    state, text = values.get("state"), values.get("record")
    if state not in (OPEN, SEALED, DROPPED) or not text:
        return None
    said = msgspec.json.decode(text)
    opened_ms = int(said.get("opened_ms", 0))
    if state != OPEN:
        return Known(name, state, int(values.get("end") or 0), opened_ms, bytes=said.get("bytes"))
    if view is not None and view.get("end") is not None:
        return Known(name, state, view["end"], opened_ms)
    top, there = await _open_top(reach, record, name)
    return Known(name, state, top, opened_ms, there > top)


async def _open_top(reach: Reach, record: Record, extent: str) -> tuple[int, int]:
    """How far it may be read, and how far there is something."""
    partition = (record.name, record.generation, extent)
    page = await reach.rows.read(Slice(LOG_BLOCKS, partition, limit=LOOK_BACK, reverse=True, columns=SHORT))
    blocks = [block_in(row) for row in reversed(page.rows)]
    end = _unbroken_end(blocks)
    return (end if reach.alone else max((block.confirmed for block in blocks), default=0)), end


def _unbroken_end(blocks: Sequence[Block]) -> int:
    """Of the newest blocks of an extent: where the first gap is. What lies before them has none: so many are under
    way at most."""
    end = blocks[0].end if blocks and (blocks[0].block == 0 or len(blocks) == LOOK_BACK) else 0
    for before, block in pairwise(blocks):
        if block.block != before.block + 1 or not end:
            break
        end = block.end
    return end


async def first_since(reach: Reach, record: Record, known: Known, put_ms: int) -> int:
    """The number from which on messages of an extent were put at that time or later: put times never fall in it."""
    low, high = 0, known.top
    while low < high:
        middle = (low + high) // 2
        block = await block_at(reach, record, known.name, middle)
        if block.put_ms >= put_ms:
            high = block.first
        else:
            low = block.end
    return min(low, known.top)


async def block_at(reach: Reach, record: Record, extent: str, number: int) -> Block:
    """The block that has that message, without its messages. Raises what `gone` makes."""
    partition = (record.name, record.generation, extent)
    page = await reach.rows.read(
        Slice(LOG_BLOCKS, partition, end=(number + 1,), limit=PIPELINE, reverse=True, columns=SHORT)
    )
    for row in page.rows:
        block = block_in(row)
        if block.first <= number < block.end:
            return block
    raise await gone(reach, record, extent, number)


async def gone(reach: Reach, record: Record, extent: str, number: int) -> Exception:
    """Why a message that was there cannot be read."""
    try:
        now = await reach.record(record.name)
    except NotFound:
        return NotFound(f"queue {record.name} was deleted while it was read")
    if now.generation != record.generation:
        return NotFound(f"queue {record.name} was purged or made anew while it was read")
    return Unavailable(
        f"extent {extent} of {record.name} has no message {number} any more: retention has dropped it while it was "
        "read. Read again; a stream goes on with the option missing=oldest"
    )


def grouped(ranges: Sequence[Range], task_rows: int) -> list[tuple[Range, ...]]:
    """What each task reads: equal shares of at most `task_rows`, in order; a share is of several extents where they are
    small. A pure function: a micro-batch that is repeated has the same tasks."""
    total = sum(each.rows for each in ranges)
    share = -(-total // max(1, -(-total // task_rows)))
    tasks: list[tuple[Range, ...]] = []
    room = 0
    for each in ranges:
        at = each.first
        while at < each.end:
            if not room:
                tasks.append(())
                room = share
            stop = min(each.end, at + room)
            tasks[-1] += (Range(each.extent, at, stop),)
            room -= stop - at
            at = stop
    return tasks
