"""Sealing what a writer left that is over.

    is its incarnation over for good? ─▶ read the end ─▶ write the unconfirmed tail again ─▶ seal by compare-and-set

    numbers    0 ……………… confirmed ┊ block ┊ block ┊ (gap) ┊ block
                                   └── kept: they may have been confirmed ──┘        └── never seen by anybody

What the writer confirmed was durable at a quorum while its lease was valid, so that a quorum read after it is over
finds all of it: below the confirmed number that the last block carries, or in the unbroken run of blocks above. A block
of that run may be on one replica only: it is written again, so that every later reader finds it too. What lands after
the read lies behind the end, and is never seen.

Of a chain, the sealer opens the successor in the same round and so becomes the chain's writer.
"""

from __future__ import annotations

from typing import Final

from capellini.model.errors import StoreError
from capellini.queues.lease import Watcher
from capellini.queues.log.extents import Extent, Extents
from capellini.queues.log.place import LogPlace
from capellini.queues.log.placing import placed
from capellini.queues.log.rows import Block, last_block, read_blocks, write_block
from capellini.queues.log.sequences import recover
from capellini.store.interface import Level

READ_BYTES: Final = 4 * 1024 * 1024  # of the tail, at a time


async def find_end(place: LogPlace, extent: Extent) -> int:
    """The number after the last message that the extent of a writer which is over has, now durable at a quorum."""
    last = await last_block(place, extent.name)
    if last is None:
        return 0
    end = confirmed = last.confirmed
    while blocks := [block for block in await read_blocks(place, extent.name, end, READ_BYTES) if block.end > end]:
        for block in blocks:
            await _again(place, extent, block)
        end = blocks[-1].end
    if end > confirmed:
        place.guards["unconfirmed tail kept"] += 1
    if last.end > end:
        place.guards["seal short of the last block"] += 1
    return end


async def _again(place: LogPlace, extent: Extent, block: Block) -> None:
    """The same row at a quorum, whatever the extent's level was: later readers ask a quorum."""
    await write_block(place, extent.name, block, Level.QUORUM)


async def seal_over(place: LogPlace, extents: Extents, watcher: Watcher) -> int:
    """Seal what writers that are over have left, in this node's home, as of the last look. How many were sealed; one
    that could not be is tried again at the next turn. Raises Unavailable without a valid lease."""
    sealed = 0
    for extent in extents.known():
        if extent.sealed or extent.home != place.home:
            continue
        if (extent.node, extent.incarnation) == (place.node, place.lease.incarnation):
            continue
        if place.chained and (extents.last is None or extents.last.name != extent.name):
            continue  # the list was read while the chain grew
        try:
            if await watcher.is_over(extent.node, extent.incarnation):
                sealed += await take_over(place, extents, extent)
                await _measure(place, extents, extent.name)
        except StoreError:
            place.guards["sealing put off"] += 1
    return sealed


async def _measure(place: LogPlace, extents: Extents, name: str) -> None:
    """How far its producers had come, for whoever needs it, and its size."""
    extent = extents.get(name)
    if extent is not None and extent.sealed and extent.bytes is None:
        size, _ = await recover(place, extent)
        await extents.measured(extent, size)


async def take_over(place: LogPlace, extents: Extents, extent: Extent) -> bool:
    """Seal an extent whose writer is over; of a chain, open the next. False: another was faster."""
    end = await find_end(place, extent)
    if not place.chained:
        now = await extents.seal(extent, end)
        place.guards["extent of a dead writer sealed"] += 1
        return now.sealed
    place.lease.require()
    opened = await extents.open_next(extent, end, None, lambda: placed(place, extents.fresh()))
    if opened is None:
        await extents.look()
        return False
    place.guards["chain taken over"] += 1
    return True
