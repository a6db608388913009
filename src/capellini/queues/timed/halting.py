"""What an operator has said about a shard: stopped, or not. Its holder, and every later one, keeps to it.

By compare-and-set, and written even where it says what stands there already: whatever an earlier word is still on its
way to do then fails. A plain write would be outdated by one of a node whose clock is ahead.
"""

from __future__ import annotations

from typing import Final

import msgspec

from capellini.queues.cell import Cell
from capellini.queues.timed.place import TimedPlace
from capellini.store.interface import Slice, Value
from capellini.store.schema import TIMED_SHARDS

OPERATOR_EPOCH: Final = -1  # below every holder's


class Word(msgspec.Struct):
    stopped: bool


async def write_halted(place: TimedPlace, shard: int, stopped: bool) -> None:
    partition = (*place.partition, shard)
    cell = Cell(
        place.store, place.clock, place.random, TIMED_SHARDS, partition, (OPERATOR_EPOCH,), ("stopped",), _in, _out
    )
    await cell.change(lambda _: (Word(stopped), None))


async def read_halted(place: TimedPlace, shard: int) -> bool:
    """Has an operator stopped this shard?"""
    bounds = Slice(TIMED_SHARDS, (*place.partition, shard), start=(OPERATOR_EPOCH,), end=(0,), limit=1)
    page = await place.store.read(bounds)
    return bool(page.rows) and _in(page.rows[0].values).stopped


def _in(values: dict[str, Value]) -> Word:
    return Word(values.get("stopped") is True)


def _out(word: Word) -> dict[str, Value]:
    return {"stopped": word.stopped}
