"""The desk: where each message of an extent is for a group, and who may settle it."""

from __future__ import annotations

import random

import pytest

from capellini.queues.log.desk import MOST_PICKS, TIMES_LEAST, Desk, Picked, Standing
from capellini.queues.log.ordering import ByGroup, Total
from capellini.queues.log.pages import Pages

TOP = 1_000


def _desk(next: int = 0, limit: int = 0, standing: Standing | None = None) -> Desk:
    return Desk(Pages(next), limit, standing)


def _flown(desk: Desk, most: int = 10, until_ms: int = 1_000) -> list[tuple[int, Picked]]:
    """(delivery, what) of all that can be had."""
    return [(desk.fly(one.first, one.end, one.deliveries + 1, until_ms), one) for one in desk.picks(most, 0, TOP)]


def test_fresh_messages_come_in_order_and_once() -> None:
    desk = _desk()
    assert [desk.picks(4, 0, 10) for _ in range(4)] == [[Picked(0, 4, 0)], [Picked(4, 8, 0)], [Picked(8, 10, 0)], []]
    assert desk.picked == 10


def test_an_ack_finishes_only_what_is_in_flight_in_that_delivery() -> None:
    desk = _desk()
    [(delivery, _)] = _flown(desk)
    assert desk.ack(delivery, [(2, 5)]) == [(2, 5)]
    assert desk.ack(delivery, [(0, 4)]) == [(0, 2)]
    assert desk.ack(delivery, [(0, 5)]) == []
    assert desk.ack(delivery + 1, [(5, 10)]) == []
    assert desk.pages.next == 5
    assert desk.ack(delivery, [(4, 99)]) == [(5, 10)]
    assert (desk.flying, desk.flights) == (0, {})


def test_a_nacked_message_comes_back_when_its_time_has_come() -> None:
    desk = _desk()
    [(delivery, _)] = _flown(desk)
    assert desk.nack(delivery, [(3, 5)], at_ms=500) == [(3, 5)]
    assert desk.next_ms() == 500
    desk.roll(499)
    assert desk.picks(10, 0, 10) == []
    assert (desk.waiting, desk.ready) == (2, 0)
    desk.roll(500)
    assert desk.picks(10, 0, 10) == [Picked(3, 5, 1)]


def test_what_was_not_settled_in_time_comes_back_and_its_receipt_is_stale() -> None:
    desk = _desk()
    [(delivery, _)] = _flown(desk, 4)
    desk.ack(delivery, [(1, 2)])
    assert not desk.roll(999)
    assert desk.roll(1_000)
    assert desk.ack(delivery, [(0, 4)]) == []
    assert desk.nack(delivery, [(0, 4)], 0) == desk.extend(delivery, [(0, 4)], 9_999) == []
    assert desk.picks(10, 0, 4) == [Picked(0, 1, 1), Picked(2, 4, 1)]


def test_extended_messages_stay_with_their_consumer() -> None:
    desk = _desk()
    [(delivery, _)] = _flown(desk, 4)
    assert desk.extend(delivery, [(2, 4)], 3_000) == [(2, 4)]
    desk.roll(2_000)
    assert [one for _, one in _flown(desk, 2, 9_000)] == [Picked(0, 2, 1)]
    assert desk.ack(delivery, [(0, 4)]) == [(2, 4)]


def test_a_delivery_too_many_leads_to_the_dead_letters() -> None:
    desk = _desk(limit=2)
    for deliveries in (1, 2):
        [(delivery, one)] = _flown(desk, 3)[:1]
        assert one.deliveries == deliveries - 1
        desk.nack(delivery, [(0, 3)], 0)
        desk.roll(1)
    assert list(desk.burying) == [(0, 3)]
    assert desk.letters(2) == [0, 1]
    desk.buried(1, 2)
    assert (desk.letters(9), desk.pages.next) == ([0, 2], 0)
    desk.buried(0, 1)
    desk.buried(2, 3)
    assert (list(desk.burying), desk.pages.next) == ([], 3)


@pytest.mark.parametrize("standing", [None, Total(), ByGroup()], ids=["loose", "total", "group"])
def test_a_new_owner_buries_what_was_delivered_too_often_before(standing: Standing | None) -> None:
    pages = Pages()
    pages.count(0, 2, 3)
    pages.move(4, 5)
    desk = Desk(pages, 3, standing)
    desk.recover()
    assert list(desk.burying) == [(0, 2), (4, 5)]


def test_a_new_owner_offers_what_was_left_with_its_counts() -> None:
    pages = Pages()
    pages.finish(0, 3)
    pages.count(3, 4, 2)
    pages.finish(5, 7)
    desk = Desk(pages)
    desk.recover()
    assert desk.picks(99, 0, 9) == [Picked(3, 4, 2), Picked(4, 5, 0), Picked(7, 9, 0)]


def test_what_is_put_back_is_fresh_again_or_stands() -> None:
    desk = _desk()
    (first,) = desk.picks(4, 0, 10)
    (second,) = desk.picks(4, 0, 10)
    desk.put_back(first.first, first.end, 0)
    desk.put_back(second.first + 1, second.end, 0)
    assert desk.out == 5
    desk.fly(4, 5, 1, 1_000)
    assert desk.picks(99, 0, 10) == [Picked(0, 4, 0), Picked(5, 10, 0)]


def test_neighbours_that_come_back_are_one_range_again() -> None:
    desk = _desk()
    [(delivery, _)] = _flown(desk, 600)
    for number in range(600):
        desk.nack(delivery, [(number, number + 1)], 5)
    desk.roll(5)
    assert desk.picks(400, 0, 600) == [Picked(0, 400, 1)]
    for number in range(400, 600, 2):
        assert desk.picks(1, 0, 600) == [Picked(number, number + 1, 1)]
        desk.picks(1, 0, 600)


def test_a_pull_has_a_bounded_number_of_ranges() -> None:
    desk = _desk()
    [(delivery, _)] = _flown(desk, TOP)
    for number in range(0, TOP, 2):
        desk.nack(delivery, [(number, number + 1)], 5)
    desk.roll(5)
    assert len(desk.picks(TOP, 0, 0)) == MOST_PICKS


def test_next_time_forgets_flights_that_are_settled() -> None:
    desk = _desk()
    [(early, _)] = _flown(desk, 2, until_ms=100)
    [(_, _)] = _flown(desk, 2, until_ms=200)
    assert desk.next_ms() == 100
    desk.ack(early, [(0, 2)])
    assert desk.next_ms() == 200


@pytest.mark.parametrize("seed", range(30))
def test_every_message_is_in_one_place_whatever_happens(seed: int) -> None:
    """Loose: nothing is lost, nothing is in two deliveries, and a stale delivery settles nothing."""
    chance = random.Random(seed)
    desk, now_ms, limit = _desk(limit=chance.choice((0, 3))), 0, 400
    held: dict[int, int] = {}  # message: its valid delivery
    known: set[int] = set()  # deliveries
    finished: set[int] = set()
    for _ in range(600):
        now_ms += chance.randrange(3)
        desk.roll(now_ms)
        held = {number: delivery for number, delivery in held.items() if _valid(desk, number, delivery)}
        act = chance.choice(("take", "take", "ack", "nack", "bury"))
        if act == "take":
            for one in desk.picks(chance.randrange(1, 9), 0, limit):
                middle = chance.randrange(one.first, one.end + 1)
                desk.put_back(middle, one.end, one.deliveries)
                if one.first < middle:
                    delivery = desk.fly(one.first, middle, one.deliveries + 1, now_ms + chance.randrange(1, 30))
                    assert not [number for number in range(one.first, middle) if number in held or number in finished]
                    held.update(dict.fromkeys(range(one.first, middle), delivery))
                    known.add(delivery)
        elif act == "bury" and desk.burying:
            number = chance.choice(desk.letters(20))
            desk.buried(number, number + 1)
            finished.add(number)
        elif known:
            delivery, first = chance.choice(sorted(known)), chance.randrange(limit)
            end = first + chance.randrange(1, 9)
            mine = {number for number in range(first, end) if held.get(number) == delivery}
            some, at_ms = [(first, end)], now_ms + chance.randrange(9)
            settled = desk.ack(delivery, some) if act == "ack" else desk.nack(delivery, some, at_ms)
            done = {number for low, high in settled for number in range(low, high)}
            assert done == mine
            for number in done:
                del held[number]
            if act == "ack":
                finished |= done
        assert {number for number in range(limit) if number in desk.pages} == finished
        assert desk.flying == len(held)
    waiting = desk.ready + desk.waiting + sum(end - first for first, end in desk.burying)
    assert waiting + len(held) + len(finished) == desk.out


def _valid(desk: Desk, number: int, delivery: int) -> bool:
    flight = desk.flights.get(delivery)
    return flight is not None and any(first <= number < end for first, end, _ in flight.left)


class Noted(int):
    """A number that counts how often any of its kind was compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Noted.compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Noted.compared += 1
        return int(self) > int(other)


def test_each_other_message_of_a_large_delivery_is_acked_in_one_pass() -> None:
    count = 2_000
    desk = _desk()
    desk.picks(count, 0, count)
    delivery = desk.fly(0, count, 1, 1_000)
    Noted.compared = 0
    done = desk.ack(delivery, [(Noted(number), Noted(number + 1)) for number in range(0, count, 2)])
    assert len(done) == count // 2 == desk.flying
    assert Noted.compared < 50 * count


def test_ranges_that_overlap_or_come_in_any_order_settle_each_message_once() -> None:
    chance = random.Random(1)
    for _ in range(300):
        desk = _desk()
        desk.picks(60, 0, 60)
        delivery, left = desk.fly(0, 60, 1, 1_000), set(range(60))
        while left:
            firsts = [chance.randrange(60) for _ in range(chance.randrange(1, 9))]
            ranges = [(first, first + chance.randrange(1, 10)) for first in firsts]
            asked = {number for first, end in ranges for number in range(first, end)}
            done = [number for first, end in desk.ack(delivery, ranges) for number in range(first, end)]
            assert sorted(done) == sorted(left & asked)
            left -= asked
            assert desk.flying == len(left)
        assert (desk.pages.next, desk.flights) == (60, {})


def test_ends_of_settled_deliveries_are_not_kept_behind_one_that_is_held_for_long() -> None:
    desk = _desk()
    desk.picks(1, 0, 100_000)
    held = desk.fly(0, 1, 1, 10_000)
    for number in range(1, 20_000):
        desk.picks(1, 0, 100_000)
        desk.ack(desk.fly(number, number + 1, 1, 10_000 + number), [(number, number + 1)])
    assert len(desk._times) <= 2 * TIMES_LEAST
    assert desk.next_ms() == 10_000
    assert desk.extend(held, [(0, 1)], 50_000) == [(0, 1)]
    assert not desk.roll(49_999) and desk.roll(50_000)
    assert desk.ready == 1


def test_parts_of_deliveries_are_bounded_as_whole_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capellini.queues.log.desk.MOST_FLIGHTS", 50)
    desk = _desk()
    desk.picks(100, 0, 100)
    delivery = desk.fly(0, 100, 1, 1_000)
    desk.ack(delivery, [(number, number + 1) for number in range(0, 98, 2)])
    assert not desk.full
    desk.extend(delivery, [(99, 100)], 2_000)
    assert desk.full
    desk.nack(delivery, [(0, 100)], at_ms=0)
    assert not desk.full and not desk.flights


def test_what_comes_back_in_too_many_ranges_holds_back_what_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other message given back for a while: what a consumer does whose target is away."""
    monkeypatch.setattr("capellini.queues.log.desk.MOST_PARTS", 10)
    desk, at_ms = _desk(), 5_000
    while not desk.crowded:
        [(delivery, pick)] = _flown(desk)
        desk.nack(delivery, [(number, number + 1) for number in range(pick.first, pick.end, 2)], at_ms)
        desk.ack(delivery, [(pick.first, pick.end)])
    assert desk.waiting == desk.standing.parts == 10
    assert desk.picks(10, 0, TOP) == []
    desk.roll(at_ms)
    for delivery, pick in _flown(desk, 4):  # what came back is to be had, and makes room
        desk.ack(delivery, [(pick.first, pick.end)])
    assert [pick.deliveries for _, pick in _flown(desk, 7)] == [1, 1, 1, 1, 1, 1, 0]


def test_messages_given_back_one_by_one_are_one_range() -> None:
    desk = _desk()
    [(delivery, _)] = _flown(desk)
    assert desk.nack(delivery, [(number, number + 1) for number in range(10)], 5_000) == [
        (number, number + 1) for number in range(10)
    ]
    assert (desk.standing.parts, desk.waiting) == (1, 10)


@pytest.mark.parametrize("standing", [None, Total(), ByGroup()])
def test_what_stands_is_told_with_its_deliveries_and_when_it_comes(standing: Standing | None) -> None:
    desk = _desk(standing=standing)
    if isinstance(standing, ByGroup):
        for number in range(3):
            standing.line_up(number, None if number else "a", 0)
        desk.out = 3
    [(delivery, _)] = _flown(desk, 3)
    desk.nack(delivery, [(0, 1)], at_ms=500)
    desk.nack(delivery, [(1, 2)], at_ms=0)
    desk.ack(delivery, [(2, 3)])
    assert sorted(desk.standing.stands()) == [(0, 1, 1, 500), (1, 2, 1, 0)]
