"""The horizon: the time up to which a shard has been read, published before it is read to.

    putter    write the row ──▶ read the horizon ──▶ below its position: confirmed
                                                └──▶ not below: write a copy above it, and look again
    holder    publish the horizon H ──▶ read all rows up to H

Whoever of the two is second sees the first: if the horizon was published before the putter looked, the putter sees it;
if not, the row was written before the holder read. Quorums meet, and no clock is asked.

    timed_shards (queue, generation, shard) ▸ epoch     horizon (ticks), run; of the operator's row (-1): stopped

Each holder publishes under its epoch, raising only, with the horizon itself as timestamp: an older write that lands
late changes nothing. A new holder begins at the highest horizon there is, so the row of the highest epoch is the
shard's. An earlier holder's row that rises later does no harm: nobody reads by it any more.

The pace (`next_step`). The holder reads about a second ahead, so that a busy shard costs one write and one read a
second; further where nothing is put that is due so soon. While nothing is there it reads further and further ahead,
up to IDLE_S; where all who put are in this process, to IDLE_ALONE_S. What is put with a due before the horizon is
placed above it, and its putter wakes the holder, which publishes a higher one and reads at once; for a while then it
reads a second ahead again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import TICKS_PER_S, UNIX_TICKS
from capellini.queues.work.place import Gone
from capellini.store.interface import Batch, Slice
from capellini.store.schema import TIMED_SHARDS

ENDLESS: Final = 1 << 62  # the horizon of a generation that is over; above every position
ENDING_EPOCH: Final = 1 << 62  # above every holder's
AHEAD_S: Final = 1.0  # read so far ahead at least
CALM_S: Final = 2.5  # where nobody had to wake the holder for CALM_STEPS: what is put is due later than that
CALM_STEPS: Final = 10  # some ten seconds
IDLE_S: Final = 5.0  # so far at most, while nothing comes
IDLE_ALONE_S: Final = 15.0  # the same where all who put are in this process; with a put's patience below COPY_WITHIN_S
LEAD_S: Final = 0.15  # the next step is taken so long before the horizon is reached: longer than a step takes
WOKEN_EVERY_S: Final = 0.2  # steps that putters ask for are taken no more often, where each is two requests


class ShardRow(msgspec.Struct, frozen=True):
    epoch: int
    horizon: int
    run: int | None


async def read_shard(place: TimedPlace, shard: int, limit: int = 1) -> list[ShardRow]:
    """Its holders' rows, the latest first."""
    bounds = Slice(TIMED_SHARDS, (*place.partition, shard), start=(0,), limit=limit, reverse=True)
    page = await place.store.read(bounds)
    found = []
    for row in page.rows:
        epoch, horizon, run = row.key[0], row.values.get("horizon"), row.values.get("run")
        if isinstance(epoch, int) and isinstance(horizon, int):
            found.append(ShardRow(epoch, horizon, run if isinstance(run, int) else None))
    return found


async def read_horizon(place: TimedPlace, shard: int) -> int | None:
    """As a quorum has it. None: nobody has ever worked this shard. Raises Gone for a generation that is over."""
    rows = await read_shard(place, shard)
    if not rows:
        return None
    if rows[0].horizon >= ENDLESS:
        place.guards["put met an endless horizon"] += 1
        raise Gone("this queue was deleted or purged")
    place.saw_horizon(shard, rows[0].horizon)
    return rows[0].horizon


async def write_horizon(place: TimedPlace, shard: int, epoch: int, horizon: int) -> None:
    """Not synced where there is one process: whoever put by it is gone when the machine goes."""
    stamp_us = (horizon - UNIX_TICKS) // 10 if horizon < ENDLESS else ENDLESS
    await place.store.write(
        Batch(
            TIMED_SHARDS,
            (*place.partition, shard),
            (((epoch,), {"horizon": horizon}),),
            timestamp_us=stamp_us,
            sync=not place.store.alone,
            frees=True,
        )
    )


async def write_run(place: TimedPlace, shard: int, epoch: int, run: int) -> None:
    rows = (((epoch,), {"run": run}),)
    await place.store.write(Batch(TIMED_SHARDS, (*place.partition, shard), rows, timestamp_us=run + 1, frees=True))


class Pace(msgspec.Struct, frozen=True):
    """What the next step is decided from. Times in ticks."""

    now: int
    horizon: int  # published
    woken: int  # the highest position that a putter asked to be read; 0: none
    since_s: float  # since the last step
    quiet: int  # steps in a row that brought nothing
    calm: int  # steps since a putter asked last
    barred: int | None  # a position that must not be read yet: something is being written there


def next_step(pace: Pace, woken_every_s: float, idle_s: float = IDLE_S) -> tuple[int, float]:
    """The horizon to publish now (0: none yet), and in how many seconds to decide again."""
    left_s = (pace.horizon - pace.now) / TICKS_PER_S - LEAD_S
    wanted = pace.woken > pace.horizon
    wait_s = min(left_s, woken_every_s - pace.since_s) if wanted else left_s
    if wait_s > 0:
        return 0, wait_s
    ahead_s = min(idle_s, AHEAD_S * 2.0 ** min(pace.quiet, 8))
    if pace.calm >= CALM_STEPS:
        ahead_s = max(ahead_s, CALM_S)
    horizon = max(pace.now + int(ahead_s * TICKS_PER_S), pace.woken, pace.horizon + 1)
    if pace.barred is not None:
        horizon = min(horizon, pace.barred - 1)
    return (horizon, 0.0) if horizon > pace.horizon else (0, LEAD_S)
