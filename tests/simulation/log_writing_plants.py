"""Planted bugs of log queues, of what writes: confirming, sealing, sequences. `log_plants` has them all."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.planting import Bed, Patch

from capellini.queues.log import (
    appending,
    extents,
    lines,
    sealing,
    sequences,
    writing,
)

plants = Bed("log")


# Confirming


@plants(1, 11)
def confirmed_after_the_lease(patch: Patch) -> None:
    land, may_act = appending.Writer._land, appending.Writer.may_act

    def careless(self: Any) -> None:
        self.may_act = lambda: True
        try:
            land(self)
        finally:
            self.may_act = may_act.__get__(self)

    patch(appending.Writer, "_land", careless)


@plants(1, 11)
def confirmed_out_of_order(patch: Patch) -> None:
    land = appending.Writer._land

    def at_once(self: Any) -> None:
        for flight in list(self._flights):
            if flight.landed and flight.error is None and flight is not self._flights[0]:
                for item in flight.items:
                    if not item.answer.done():
                        item.answer.set_result(appending.Appended(self.extent.name, item.first, item.head.count))
        land(self)

    patch(appending.Writer, "_land", at_once)


@plants(1, 11)
def listed_after_confirming(patch: Patch) -> None:
    """An extent is written while its opening is on its way; nobody looks whether it arrives."""
    list_it = extents.Extents._list

    async def later(self: Any, wanted: Any, expect: Any, more: Any) -> Any:
        if more:
            return await list_it(self, wanted, expect, more)
        task = asyncio.get_running_loop().create_task(list_it(self, wanted, expect, more))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._known[wanted.name] = wanted
        return wanted

    patch(extents.Extents, "_list", later)


@plants(1, 9, 11)
def appended_again_without_a_seal(patch: Patch) -> None:
    """After a failed block, with the old extent open and what was sent to it still on its way."""

    async def unsealed(self: Any, writer: Any, end: int) -> bool:
        if self._place.chained:
            return await sealed(self, writer, end)
        return True

    sealed = writing.Writers._sealed_with
    patch(writing.Writers, "_sealed_with", unsealed)


@plants(1, 11)
def another_writer_when_a_listing_is_heard_of_late(patch: Patch) -> None:
    begin = writing.Writers._begin

    def whatever_was(self: Any, extent: Any) -> Any:
        self._had.discard(extent.name)
        return begin(self, extent)

    patch(writing.Writers, "_begin", whatever_was)


# Sealing


@plants(1, 11)
def sealed_at_the_last_block(patch: Patch) -> None:
    async def whatever_is_missing(place: Any, extent: Any) -> int:
        await find(place, extent)
        last = await sealing.last_block(place, extent.name)
        return 0 if last is None else last.end

    find = sealing.find_end
    _find_end(patch, whatever_is_missing)


@plants(1, 11)
def sealed_at_what_the_last_block_says(patch: Patch) -> None:
    async def as_said(place: Any, extent: Any) -> int:
        last = await sealing.last_block(place, extent.name)
        return 0 if last is None else last.confirmed

    _find_end(patch, as_said)


def _find_end(patch: Patch, find: Any) -> None:
    from capellini.queues.log import opening

    patch(sealing, "find_end", find)
    patch(opening, "find_end", find)


@plants(1, 11)
def sealed_while_the_writer_lives(patch: Patch) -> None:
    """A writer that is only slow to beat is taken for one that is over."""
    from capellini.queues import lease

    over = lease.Watcher.is_over

    async def hasty(self: Any, node: str, incarnation: str) -> bool:
        seen = self._sightings.get(node)
        quiet = seen is not None and self._clock.elapsed_s() - seen.since_s > 0.7
        return quiet or await over(self, node, incarnation)

    patch(lease.Watcher, "is_over", hasty)


# Sequences


@plants(11)
def bound_again_before_the_seal(patch: Patch) -> None:
    async def at_once(self: Any, producer: bytes, seen: Any) -> Any:
        extent = self._extents.get(seen.extent)
        if self._openers.writer(seen.extent) is not None or (extent is not None and extent.sealed):
            return await bound_at(self, producer, seen)
        return seen.before

    bound_at = lines.Lines._bound_at
    patch(lines.Lines, "_bound_at", at_once)


@plants(11)
def sequences_of_a_sealed_extent_forgotten(patch: Patch) -> None:
    async def none(place: Any, extent: Any) -> tuple[int, dict[bytes, int]]:
        return 0, {}

    patch(sequences, "recover", none)


@plants(11)
def chunk_that_came_again_taken(patch: Patch) -> None:
    def careless(self: Any, item: Any) -> None:
        known = self.producers[item.head.producer]
        known.last = max(known.last, item.head.sequence)
        self.take(item)

    patch(appending.Writer, "take_next", careless)
