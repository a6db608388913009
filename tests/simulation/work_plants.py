"""Planted bugs of work queues: each takes one guard away, and the simulation must find it."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.simulation.planting import Bed, Patch

from capellini.model.errors import CapelliniError, Unknown
from capellini.model.receipts import parse_receipt
from capellini.node import broker
from capellini.queues import catalog, cell, ending, trail
from capellini.queues.work import bucket, keyed, letters, place, putting, queue, reading, repair
from capellini.queues.work.runs import FRESH, HIDDEN, Run, changed
from capellini.store.interface import Cas
from capellini.store.schema import POINTERS

plants = Bed("work")


# Claims


@plants(2, 3, 4)
def claim_without_a_new_version(patch: Patch) -> None:
    claim = bucket.claim

    def same_version(runs: Any, offers: Any, *args: Any) -> Any:
        after, claimed = claim(runs, offers, *args)
        taken = tuple(run._replace(version=max(1, run.version - 1)) for run in claimed.taken)
        for run in taken:
            after, _ = changed(after, run.start, run.end, lambda _piece: run)  # noqa: B023
        return after, claimed._replace(taken=taken)

    patch(reading, "claim", same_version)


@plants(2, 3)
def lost_answer_taken_as_done(patch: Patch) -> None:
    async def optimistic(store: Any, clock: Any, cas: Cas, key: Any, before: Any, name: str) -> Any:
        try:
            outcome = await store.compare_and_set(cas)
        except Unknown:
            return trail.Settled(False, True, {})
        return trail.Settled(False, outcome.applied, outcome.rows)

    patch(cell, "settle_named", optimistic)


@plants(2)
def visibility_without_the_skew(patch: Patch) -> None:
    made = place.Place.__init__

    def without(self: Any, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        self.max_skew_ms = 0

    patch(place.Place, "__init__", without)


@plants(5)
def delay_of_a_fresh_message_not_looked_at(patch: Patch) -> None:
    claim = bucket.claim

    def at_once(runs: Any, offers: Any, *args: Any) -> Any:
        return claim(runs, [offer._replace(due_ms=0) for offer in offers], *args)

    patch(reading, "claim", at_once)


# Receipts


@plants(2, 3, 4)
def receipt_accepted_after_redelivery(patch: Patch) -> None:
    def whoever(runs: Any, proof: Any, new: Run) -> Any:
        return changed(
            runs,
            proof.start,
            proof.end,
            lambda run: new._replace(start=run.start, end=run.end, version=run.version) if run.kind == HIDDEN else None,
        )

    patch(bucket, "_of", whoever)


@plants(4)
def generation_of_a_receipt_not_checked(patch: Patch) -> None:
    def any_generation(receipts: Any, record: Any, place: Any) -> Any:
        held, results, places = [], [None] * len(receipts), []
        for index, text in enumerate(receipts):
            try:
                receipt = parse_receipt(text)
            except CapelliniError as error:
                results[index] = broker.Problem.of(error)
                continue
            held.append(queue.Held(receipt.id, 1, receipt.version))
            places.append(index)
        return held, results, places

    patch(broker, "held_by", any_generation)


@plants(2)
def extend_not_written(patch: Patch) -> None:
    async def told_only(self: Any, held: Any, visibilities_s: Any) -> list[int]:
        return [self.place.now_ms() + int(seconds * 1000) for seconds in visibilities_s]

    patch(queue.WorkQueue, "extend", told_only)


@plants(1, 2, 3)
def ack_told_before_it_is_written(patch: Patch) -> None:
    ack = queue.WorkQueue.ack

    async def told_first(self: Any, held: Any) -> Any:
        self._spawn(ack(self, held))
        return [[(one.first, one.count)] for one in held]

    patch(queue.WorkQueue, "ack", told_first)


# Puts


@plants(1)
def confirmation_past_the_deadline(patch: Patch) -> None:
    write = putting.Putting._write

    async def patient(self: Any, at: int, pieces: Any, now_ms: int, deadline_s: float) -> None:
        await write(self, at, pieces, now_ms, deadline_s + 1e9)

    patch(putting.Putting, "_write", patient)


@plants(11, 3)
def late_put_not_voided(patch: Patch) -> None:
    async def again(self: Any, at: int, piece: Any) -> None:
        piece.tries += 1
        self._queue(piece)

    patch(putting.Putting, "_late", again)


@plants(11, 3)
def key_row_not_checked(patch: Patch) -> None:
    async def always_new(
        place: Any, putting: Any, reading: Any, key: str, packed: Any, ttl_s: float, moved: bool = False
    ) -> tuple[int, bool]:
        ((id, _),) = await putting.put(packed)
        return id, False

    patch(queue, "put_keyed", always_new)


@plants(1, 11, 3)
def unwritten_id_of_a_key_not_voided(patch: Patch) -> None:
    def looked_only(runs: Any, slot: int) -> Any:
        return runs, bucket.pieces(runs, slot, slot + 1).__next__().kind in (FRESH, bucket.VOID)

    patch(keyed, "_void", looked_only)


# The list and repair


@plants(10)
def hint_not_lowered_on_nack(patch: Patch) -> None:
    async def nothing(self: Any, *args: Any) -> None:
        return None

    patch(queue.WorkQueue, "_visible_earlier", nothing)


@plants(1, 8, 10)
def list_overwritten_blindly(patch: Patch) -> None:
    write = cell.Cell._write

    async def blind(self: Any, state: Any) -> bool:
        if self._table is not POINTERS:
            return await write(self, state)
        while not await write(self, state):
            pass
        return True

    patch(cell.Cell, "_write", blind)


@plants(1)
def repair_without_waiting(patch: Patch) -> None:
    step = repair.Repair.step

    async def at_once(self: Any) -> int:
        await step(self)  # sees the gaps
        self._first_seen_s = {at: seen_s - 1e9 for at, seen_s in self._first_seen_s.items()}
        return await step(self)

    patch(repair.Repair, "step", at_once)


@plants(1)
def bucket_dropped_one_message_early(patch: Patch) -> None:
    standing = bucket.standing

    def nearly(runs: Any, size: int) -> Any:
        stands = standing(runs, size)
        left = stands.fresh + sum(run.end - run.start for run in runs if run.kind in bucket.TIMED)
        return stands._replace(finished=left <= 1)

    patch(repair, "standing", nearly)
    patch(reading, "standing", nearly)


@plants(1, 3, 11)
def marker_of_a_dropped_bucket_not_looked_at(patch: Patch) -> None:
    patch(place, "_guard", lambda at, values: None)


# Moves


@plants(1)
def dead_letter_finished_before_it_is_published(patch: Patch) -> None:
    async def finished_first(source: Any, reading: Any, id: int, back: bool, put_moved: Any) -> bool:
        slot, here = id % source.size, source.cell(id // source.size)
        block = await reading.block_of(id)
        entry = block.read()[id - block.first]
        await here.change(lambda runs: bucket.moved(runs, slot, slot + 1))
        target = letters.origin_of(entry.origin).queue if back else source.options.dead_letters
        origin = letters.Origin(source.name, source.generation, id)
        letter = msgspec.structs.replace(entry, delay_ms=0, origin=None if back else str(origin))
        await put_moved(target, f"moved:{origin}", letter)
        return True

    patch(letters, "_carry_one", finished_first)


@plants(11, 2, 3)
def move_without_a_key(patch: Patch) -> None:
    async def plainly(self: Any, key: str, packed: Any) -> None:
        await self.putting.put(packed)

    patch(queue.WorkQueue, "put_moved", plainly)


# Gets and generations


@plants(10)
def claim_without_a_waiter_not_released(patch: Patch) -> None:
    patch(queue.WorkQueue, "_release", lambda self, taken: None)


@plants(3, 4, 11)
def name_cached_for_long(patch: Patch) -> None:
    patch(catalog, "CACHE_S", 60.0)


@plants(1, 3, 4, 11)
def generation_ended_without_waiting_for_the_caches(patch: Patch) -> None:
    patch(catalog, "SETTLE_S", 0.0)


@plants(1, 11)
def monoton_of_an_ended_generation_left_open(patch: Patch) -> None:
    async def open_still(self: Any, queue: str, generation: int) -> None:
        return None

    patch(ending.Endings, "close_monoton", open_still)
    patch(catalog, "CACHE_S", 5.0)
