"""Planted bugs of timed queues: each takes one guard away, and the simulation must find it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
from tests.simulation.planting import Bed, Patch

from capellini.model.errors import NotFound
from capellini.queues.timed import (
    acting,
    changing,
    committing,
    desk,
    holder,
    judging,
    keeper,
    keyed,
    putting,
    records,
    taking,
)
from capellini.queues.timed.positions import behind, ticks_of

BY_HAND = {  # seeds find these too seldom: a story in `test_timed_guards`, `_changes` or `_requests` does
    "changes_of_one_message_at_once",
    "dead_letter_not_marked_as_moving",
    "delay_of_a_nack_not_durable",
    "deliveries_begin_anew_after_a_move",
    "holder_that_hangs_is_waited_for",
    "lowest_message_is_the_one_that_came_first",
    "moved_row_remembered_before_its_page_is_judged",
    "part_dropped_with_unfinished_messages",
    "parts_of_earlier_holders_not_dropped",
    "row_of_a_move_not_made_sure_of",
    "shard_not_put_on_the_list",
    "shard_worked_again_under_its_epoch",
    "void_row_not_marked",
    "what_a_move_left_is_not_settled",
}
plants = Bed("timed")


# The horizon


@plants(1)
def horizon_published_after_reading(patch: Patch) -> None:
    publish = holder.Holder._publish

    async def read_first(self: Any, horizon: int) -> None:
        if self.ready:
            self.published = self._confirmed = horizon
            await self._read()
        await publish(self, horizon)

    patch(holder.Holder, "_publish", read_first)


@plants(1)
def no_check_after_the_write(patch: Patch) -> None:
    look = putting.Putting._horizon

    async def as_remembered(self: Any, shard: int, deadline_s: float) -> int | None:
        known: int | None = self._place.horizons.get(shard)
        return await look(self, shard, deadline_s) if known is None else 1

    patch(putting.Putting, "_horizon", as_remembered)


@plants(1)
def read_to_is_said_to_be_the_horizon(patch: Patch) -> None:
    made = holder.Holder._snapshot
    patch(
        holder.Holder,
        "_snapshot",
        lambda self: msgspec.structs.replace(made(self), read=behind(max(self.published, ticks_of(self.read)))),
    )


@plants(1)
def shard_not_put_on_the_list(patch: Patch) -> None:
    async def nothing(self: Any, item: str) -> None:
        return None

    patch(keeper.TimedKeeper, "_register", nothing)


# Copies and keys


@plants(2, 3, 11)
def second_copy_not_dropped(patch: Patch) -> None:
    judge = judging.Judging.judge

    def forgetful(self: Any, row: Any) -> bool:
        self.recent.pop(row.name, None)
        return judge(self, row)

    patch(judging.Judging, "judge", forgetful)


@plants(3, 11)
def finished_ids_not_kept_for_the_next_holder(patch: Patch) -> None:
    known = records.read_known

    async def forgetful(place: Any, shard: int, epoch: int) -> Any:
        found, at = await known(place, shard, epoch)
        found.recent.clear()
        return found, at

    patch(holder, "read_known", forgetful)


@plants(2, 3, 11)
def holder_does_not_ask_the_key(patch: Patch) -> None:
    async def always(self: Any, row: Any) -> bool:
        return True

    patch(judging.Judging, "_of_its_key", always)


@plants(11)
def void_row_not_marked(patch: Patch) -> None:
    async def nothing(place: Any, id: Any, due_ms: int) -> None:
        pass

    patch(keyed, "_make_void", nothing)


# Leases and epochs


@plants(1, 3)
def epoch_not_in_the_key(patch: Patch) -> None:
    """All holders write under the first one's epoch."""
    part, at_horizon, at_run = records.partition_of, holder.write_horizon, committing.write_run
    patch(records, "partition_of", lambda place, shard, epoch, run: part(place, shard, 1, run))
    patch(committing, "partition_of", lambda place, shard, epoch, run: part(place, shard, 1, run))
    patch(holder, "write_horizon", lambda place, shard, epoch, horizon: at_horizon(place, shard, 1, horizon))
    patch(committing, "write_run", lambda place, shard, epoch, run: at_run(place, shard, 1, run))


@plants(3, 4)
def ack_confirmed_after_the_lease(patch: Patch) -> None:
    made, stop = committing.Committing.__init__, committing.Committing.stop

    def careless(self: Any, place: Any, shard: int, epoch: int, lease: Any, *more: Any) -> None:
        made(self, place, shard, epoch, SimpleNamespace(valid=lambda: True), *more)

    def told_done(self: Any) -> None:
        for part in self._waiting:
            if part.answer is not None and not part.answer.done():
                part.answer.set_result(None)
        stop(self)

    patch(committing.Committing, "__init__", careless)
    patch(committing.Committing, "stop", told_done)


@plants(2, 3, 4)
def ack_confirmed_before_it_is_durable(patch: Patch) -> None:
    async def at_once(self: Any, part: Any) -> None:
        self.submit(part)

    patch(committing.Committing, "commit", at_once)


@plants(3)
def acks_leave_the_desk_after_the_snapshot(patch: Patch) -> None:
    def late(self: Any, group: Any) -> None:
        committing._tell(group, None)
        for part in group:
            if part.then is not None:
                asyncio.get_running_loop().call_later(0.001, part.then)

    patch(committing.Committing, "_done", late)


@plants(1, 3)
def no_snapshot_of_its_own(patch: Patch) -> None:
    """A new holder goes on in its own run without saying what it found."""
    made = holder.Holder._snapshot

    def empty(self: Any) -> Any:
        snapshot = made(self)
        return snapshot if self.ready else msgspec.structs.replace(snapshot, ahead=b"", recent=b"")

    patch(holder.Holder, "_snapshot", empty)


# Holding


@plants(4)
def given_back_and_still_good_for_an_ack(patch: Patch) -> None:
    def held(self: Any, offset: int, delivery: int) -> Any:
        message = self.messages.get(offset)
        good = message is not None and message.deliveries == delivery
        return message if good and message.state in (desk.State.FLYING, desk.State.READY) else None

    patch(desk.Desk, "held", held)


@plants(5)
def delay_of_a_nack_not_durable(patch: Patch) -> None:
    known = records.read_known

    async def forgetful(place: Any, shard: int, epoch: int) -> Any:
        found, at = await known(place, shard, epoch)
        found.hidden.clear()
        return found, at

    patch(holder, "read_known", forgetful)


@plants(5)
def due_without_the_skew(patch: Patch) -> None:
    patch(holder.Holder, "_due_ms", lambda self, row: row.due_ms)


@plants(2, 3, 11)
def dead_letter_not_marked_as_moving(patch: Patch) -> None:
    bury = acting.bury

    async def unmarked(at: Any, message: Any, put_moved: Any) -> None:
        message.moving = records.Moving()
        await bury(at, message, put_moved)

    patch(keeper, "bury", unmarked)


@plants(10)
def holder_that_hangs_is_waited_for(patch: Patch) -> None:
    patch(taking, "HANGS_S", 60.0)


# Cancels, moves, drops


@plants(3)
def cancel_not_checked(patch: Patch) -> None:
    """A marker in the row, whatever was read already."""

    async def blind(at: Any, id: Any) -> None:
        if await changing._live_row(at, id) is None:
            raise NotFound(changing.GONE)
        await changing.mark_row(at.place, id, 0, at.stamp(), cancelled=True)

    patch(changing, "cancel", blind)


@plants(3)
def cancelled_row_handed_out(patch: Patch) -> None:
    judge = judging.Judging.judge
    patch(judging.Judging, "judge", lambda self, row: judge(self, msgspec.structs.replace(row, cancelled=False)))


@plants(1)
def row_of_a_move_not_made_sure_of(patch: Patch) -> None:
    async def trusting(self: Any, row: Any, there: Any, read_to: Any) -> bool:
        return False

    patch(judging.Judging, "_moved_on", trusting)


@plants(3, 4)
def deliveries_begin_anew_after_a_move(patch: Patch) -> None:
    made = judging.moved_row

    def anew(row: Any, position: Any, due_ms: int, deliveries: int) -> Any:
        return made(row, position, due_ms, 0)

    patch(holder, "moved_row", anew)
    patch(judging, "moved_row", anew)
    patch(changing, "moved_row", anew)


@plants(1)
def part_dropped_with_unfinished_messages(patch: Patch) -> None:
    drop = holder.Holder._drop_parts

    async def early(self: Any) -> None:
        first, self.desk.first = self.desk.first, lambda: None
        try:
            await drop(self)
        finally:
            self.desk.first = first

    patch(holder.Holder, "_drop_parts", early)


@plants(8)
def parts_of_earlier_holders_not_dropped(patch: Patch) -> None:
    async def none(*args: Any) -> list[str]:
        return []

    patch(holder, "list_parts", none)


@plants(1, 3, 5)
def what_a_move_left_is_not_settled(patch: Patch) -> None:
    async def trusting(at: Any, id: Any) -> Any:
        note = await changing.read_note(at.place, id)
        for place in note or ():
            if await changing.read_row(at.place, place) is not None:
                return place
        return id

    patch(changing, "_settled", trusting)


@plants(3, 5)
def changes_of_one_message_at_once(patch: Patch) -> None:
    async def at_once(at: Any, id: Any, change: Any) -> None:
        await change()

    patch(changing, "_in_turn", at_once)


@plants(1)
def lowest_message_is_the_one_that_came_first(patch: Patch) -> None:
    patch(desk.Desk, "first", lambda self: next(iter(self.messages.values()), None))


@plants(3)
def shard_worked_again_under_its_epoch(patch: Patch) -> None:
    patch(keeper.TimedKeeper, "_worked_before", lambda self, owned: False)


@plants(1)
def moved_row_remembered_before_its_page_is_judged(patch: Patch) -> None:
    prepared = judging.Judging.prepared

    async def hasty(self: Any, reach: Any) -> Any:
        try:
            return await prepared(self, reach)
        finally:
            for row in reach.rows:
                if row.moved_to is not None:
                    self.remember(row.name)

    patch(judging.Judging, "prepared", hasty)
