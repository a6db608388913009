"""The pure parts of a timed shard's holder: the pace, the desk, the records, receipts."""

from __future__ import annotations

import pickle
import random
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from capellini.model.errors import Conflict, Invalid
from capellini.model.message import Entry
from capellini.model.options import TimedOptions, check_change, options_of
from capellini.queues.timed.desk import AROUND_BYTES, LIFE, STALE_ENTRIES, Desk, State
from capellini.queues.timed.holder import PAGE_BYTES, page_rows
from capellini.queues.timed.horizon import AHEAD_S, CALM_S, CALM_STEPS, IDLE_ALONE_S, IDLE_S, LEAD_S, Pace, next_step
from capellini.queues.timed.judging import Judging
from capellini.queues.timed.positions import TICKS_PER_S, position_of, ticks_of_ms
from capellini.queues.timed.proofs import Proof, proof_of, receipt_of
from capellini.queues.timed.putting import COPY_WITHIN_S, PATIENCE_S
from capellini.queues.timed.records import Change, Known, Moving, Snapshot, known_of, packed, unpacked
from capellini.queues.timed.rows import PAGE_ROWS, TimedRow, order_key, row_in, row_out
from capellini.store.interface import Row

NOW = ticks_of_ms(1_800_000_000_000)
CHANCE = random.Random(7)


def place_at(second: float, shard: int = 3) -> UUID:
    return position_of(NOW + int(second * TICKS_PER_S), shard, CHANCE)


def row_at(second: float, **more: Any) -> TimedRow:
    position = place_at(second)
    due_ms = 1_800_000_000_000 + int(second * 1000)
    return msgspec.structs.replace(TimedRow(position, position, 0, due_ms, due_ms, Entry(b"m")), **more)


def pace(**more: Any) -> Pace:
    return msgspec.structs.replace(Pace(NOW, NOW + TICKS_PER_S, 0, 1.0, 0, 0, None), **more)


# The pace


def test_the_next_step_comes_shortly_before_the_horizon() -> None:
    horizon, wait_s = next_step(pace(), 0.2)
    assert (horizon, wait_s) == (0, pytest.approx(1.0 - LEAD_S))
    horizon, _ = next_step(pace(horizon=NOW), 0.2)
    assert horizon == NOW + int(AHEAD_S * TICKS_PER_S)


def test_where_nothing_is_put_that_is_due_soon_it_is_read_further_ahead() -> None:
    def ahead_s(**more: Any) -> float:
        return (next_step(pace(horizon=NOW, **more), 0.2)[0] - NOW) / TICKS_PER_S

    assert ahead_s(calm=CALM_STEPS - 1) == AHEAD_S < ahead_s(calm=CALM_STEPS) == CALM_S < IDLE_S
    assert ahead_s(calm=CALM_STEPS, quiet=9) == IDLE_S


def test_a_quiet_shard_reads_further_and_further_ahead_up_to_a_limit() -> None:
    ahead = [next_step(pace(horizon=NOW, quiet=quiet), 0.2)[0] - NOW for quiet in range(12)]
    assert ahead == sorted(ahead)
    assert ahead[-1] == int(IDLE_S * TICKS_PER_S)
    alone = next_step(pace(horizon=NOW, quiet=9), 0.0, IDLE_ALONE_S)[0] - NOW
    assert alone == int(IDLE_ALONE_S * TICKS_PER_S)
    assert IDLE_S < IDLE_ALONE_S < COPY_WITHIN_S - PATIENCE_S  # a put that meets it still has time for a copy


def test_a_putter_wakes_it_but_not_more_often_than_worth_its_while() -> None:
    asked = NOW + 2 * TICKS_PER_S
    assert next_step(pace(woken=asked, since_s=0.05), 0.2) == (0, pytest.approx(0.15))
    assert next_step(pace(woken=asked, since_s=0.3), 0.2)[0] == asked
    assert next_step(pace(woken=asked, since_s=0.0), 0.0)[0] == asked


def test_what_is_barred_is_not_reached() -> None:
    barred = NOW + TICKS_PER_S // 2
    assert next_step(pace(horizon=NOW, barred=barred), 0.2)[0] == barred - 1
    assert next_step(pace(horizon=NOW, barred=NOW), 0.2)[0] == 0


def test_the_horizon_only_rises_also_when_the_clock_steps_back() -> None:
    horizon, wait_s = next_step(pace(now=NOW - 60 * TICKS_PER_S), 0.2)
    assert horizon == 0 and wait_s > 60


# The desk


def test_a_message_comes_is_taken_and_comes_back() -> None:
    desk = Desk(5)
    message = desk.add(row_at(0), 1_000)
    assert (desk.roll(999), desk.take(10, 0), desk.next_ms()) == ([], [], 1_000)
    desk.roll(1_000)
    assert desk.take(10, 2_000) == [message]
    assert (message.offset, message.deliveries, desk.flying, desk.next_ms()) == (5, 1, 1, 2_000)
    assert desk.held(5, 1) is message and desk.held(5, 2) is None
    assert desk.roll(2_000) == [message]
    assert desk.held(5, 1) is message  # nobody else has it yet
    desk.take(1, 3_000)
    assert desk.held(5, 1) is None and desk.held(5, 2) is message


def test_what_was_given_back_cannot_be_acked_any_more() -> None:
    desk = Desk(0)
    message = desk.add(row_at(0), 0)
    desk.roll(0)
    desk.take(1, 100)
    desk.hide(message, 0)
    desk.roll(0)
    assert message.state is State.READY and desk.held(0, 1) is None


def test_what_is_due_earliest_goes_first_whenever_it_came() -> None:
    desk = Desk(0)
    late, urgent = desk.add(row_at(5), 0), desk.add(row_at(-60), 0)
    desk.roll(0)
    assert desk.take(2, 100) == [urgent, late]


def test_what_is_leaving_is_offered_to_nobody_and_moves_the_cursor_when_gone() -> None:
    desk = Desk(0)
    first, second = desk.add(row_at(0), 0), desk.add(row_at(1), 0)
    desk.roll(0)
    desk.leave(second)
    assert desk.take(10, 100) == [first]
    desk.gone(second)
    assert desk.first() == first
    desk.leave(first)
    desk.gone(first)
    assert (desk.first(), len(desk), desk.bytes) == (None, 0, 0)


def test_what_is_in_flight_has_a_limit_after_which_nothing_is_taken_until_one_comes_back() -> None:
    desk = Desk(0)
    one = AROUND_BYTES + 6 + 2  # the body, and an attribute
    desk.most_flying_bytes = one + 1
    messages = [desk.add(row_at(at, entry=Entry(b"m" * 6, {"k": "v"})), 0) for at in range(4)]
    desk.roll(0)
    assert desk.take(10, 100) == messages[:2]  # the second goes beyond it
    assert (desk.flying_bytes, desk.bytes, desk.too_much_flies, desk.take(10, 100)) == (2 * one, 2 * one, True, [])
    desk.leave(messages[0])
    assert (desk.flying_bytes, desk.bytes, desk.too_much_flies) == (one, 3 * one, False)
    desk.gone(messages[0])
    assert desk.take(10, 200) == [messages[2]] and desk.take(10, 200) == []
    assert desk.roll(100) == [messages[1]]  # its visibility is over
    assert (desk.flying_bytes, desk.take(10, 300), desk.flying_bytes) == (one, [messages[1]], 2 * one)


def test_what_was_handed_out_and_is_hidden_takes_no_room_from_what_comes_next() -> None:
    desk = Desk(0)
    nacked, buried, moved = [desk.add(row_at(at), 0) for at in range(3)]
    size = nacked.size
    desk.roll(0)
    desk.take(2, 100)
    desk.hide(nacked, 5_000)
    desk.roll(100)
    desk.put_aside(buried)
    desk.leave(moved)
    desk.add(row_at(4), 9_000, deliveries=1)
    assert (desk.hidden, desk.hidden_bytes, desk.waits) == (3, 3 * size, (1, size))  # `moved` was never out
    desk.most_flying_bytes = 3 * size
    assert desk.too_much_is_out and not desk.too_much_flies
    desk.gone(buried)
    desk.roll(5_000)
    assert (desk.hidden, desk.hidden_bytes, desk.waits, desk.too_much_is_out) == (1, size, (2, 2 * size), False)


def test_what_stays_for_long_does_not_keep_the_traces_of_all_that_pass_it() -> None:
    desk = Desk(0)
    stays = desk.add(row_at(0), 0)
    desk.roll(0)
    desk.take(1, 10**9)
    heaps = {"_places", "_times", "_ready"}
    sizes = []
    for at in range(1, 5_000):
        sizes.append(len(pickle.dumps({name: kept for name, kept in vars(desk).items() if name not in heaps})))
        desk.extend(stays, 10**9 + at)
        passing = desk.add(row_at(at), 0)
        desk.roll(0)
        if at % 2:
            desk.take(1, 10**9)
        desk.leave(passing)
        desk.gone(passing)
    assert all(len(vars(desk)[heap]) <= STALE_ENTRIES + 3 for heap in heaps) and sizes[-1] <= sizes[1] + 100
    assert (desk.first(), desk.next_ms(), desk.roll(10**9 + 4_998)) == (stays, 10**9 + 4_999, [])
    assert desk.roll(10**9 + 4_999) == desk.take(1, 0) == [stays]


def test_names_are_looked_through_seldom_where_there_are_many() -> None:
    judging, read, looks = Judging(cast(Any, None), Known(place_at(0)), lambda: 0), place_at(1), 0
    since = judging.since

    def counted(read: UUID) -> list[tuple[UUID, int]]:
        nonlocal looks
        looks += 1
        return since(read)

    judging.since = counted  # type: ignore[method-assign]
    for _ in range(20):
        for at in range(2_000):
            judging.remember((place_at(at / 2_000), 0))
        judging.forget_old(read)
    assert looks <= 6 and len(judging.recent) == 40_000
    for _ in range(12):
        for at in range(2_000):
            judging.remember((place_at(100 + at / 2_000), 0))
        judging.forget_old(place_at(101))
    assert len(judging.recent) <= 24_000


def test_large_messages_are_read_a_few_at_a_time() -> None:
    assert page_rows([row_at(at) for at in range(10)]) == PAGE_ROWS
    assert page_rows([row_at(0, entry=Entry(b"m" * PAGE_BYTES))]) == 1
    assert page_rows([row_at(0, entry=Entry(b"m" * (PAGE_BYTES // 10)))]) == 9


def test_an_extended_message_stays_hidden() -> None:
    desk = Desk(0)
    message = desk.add(row_at(0), 0)
    desk.roll(0)
    desk.take(1, 100)
    assert desk.extend(message, 500)
    assert desk.roll(100) == [] and desk.roll(500) == [message]
    assert not desk.extend(message, 900)


def test_every_state_but_the_last_has_a_way_on() -> None:
    assert {state for state, _ in LIFE} == set(State) - {State.GONE}


# Records


def test_positions_are_packed_into_about_nine_bytes() -> None:
    positions = [place_at(at / 100) for at in range(2_000)]
    data = packed(positions)
    assert sorted(unpacked(data, 3), key=order_key) == sorted(positions, key=order_key)
    assert len(data) < 10 * len(positions)


def snapshot_of(read: UUID, **more: Any) -> Snapshot:
    return msgspec.structs.replace(Snapshot(read, "", b"", [], [], [], b"", [], 9), **more)


def test_a_new_holder_knows_what_is_finished_and_what_is_not() -> None:
    low, open_one, acked_one, above = place_at(0), place_at(1), place_at(2), place_at(9)
    snapshot = snapshot_of(place_at(5), open=packed([low, open_one, acked_one]), hidden=[((open_one, 0), 77)])
    change = Change(done=packed([acked_one, above]), moving=[(low, Moving())])
    known = known_of(snapshot, [change], 3)
    assert known.open == {low, open_one}
    assert known.done == {above}  # it will be read again, and passed over
    assert known.hidden == {(open_one, 0): 77}
    assert known.moving == {low: Moving()}
    assert {(acked_one, 0), (above, 0)} <= known.recent


def test_a_finished_copy_is_known_by_its_id() -> None:
    id, copy = place_at(1), place_at(6)
    known = known_of(snapshot_of(place_at(0)), [Change(done=packed([copy]), names=[(id, 0)])], 3)
    assert (id, 0) in known.recent


def test_a_move_that_was_given_up_is_not_resumed() -> None:
    one = place_at(1)
    changes = [Change(moving=[(one, Moving())]), Change(hidden=[((one, 0), 5)], stays=[one])]
    assert known_of(snapshot_of(place_at(3), open=packed([one])), changes, 3).moving == {}


def test_records_survive_their_encoding() -> None:
    snapshot = snapshot_of(place_at(0), moving=[(place_at(1), Moving(place_at(2), 5))], names=[(place_at(3), 2)])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=Snapshot) == snapshot


@pytest.mark.parametrize(
    "row", [row_at(1), row_at(2, id=place_at(0)), row_at(3, version=2, key="k", moved_from=place_at(8))]
)
def test_a_row_is_read_as_it_was_written(row: TimedRow) -> None:
    values = {name: value for name, value in row_out(row).items() if value is not None}
    assert row_in(Row((row.position,), values)) == row


def test_a_marker_without_a_message_is_no_row() -> None:
    assert row_in(Row((place_at(1),), {"cancelled": True})) is None


# Receipts


def test_a_receipt_proves_one_delivery_by_one_holder() -> None:
    proof = Proof(3, 12_345_678, 77, 2)
    text = receipt_of(b"secret", 4, proof)
    assert proof_of(b"secret", 4, text) == proof
    assert proof_of(b"secret", 5, text) is None
    with pytest.raises(Invalid, match="altered"):
        proof_of(b"other", 4, text)


# Options


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"shards": 0}, "shards goes from 1"),
        ({"shards": 10_000}, "shards goes from 1"),
        ({"granularity": "week"}, "minute, hour, day"),
        ({"bucket_size": 10}, "not an option of timed queues"),
    ],
)
def test_wrong_options_are_refused_with_a_word(given: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        options_of("timed", given)


def test_shards_can_change_and_the_granularity_cannot() -> None:
    options = options_of("timed", {})
    after = check_change("timed", options, {"shards": 7})
    assert isinstance(after, TimedOptions) and after.shards == 7
    with pytest.raises(Conflict, match="granularity"):
        check_change("timed", options, {"granularity": "day"})
