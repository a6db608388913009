"""The checkers of log queues see what they are there to see, and accuse nobody else: each broken once and kept once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.checkers import Call, Sent

from capellini.model.message import Delivery
from capellini.model.service import Done, Problem, Put
from capellini.proof.log_checkers import check_log
from capellini.proof.log_history import LogHistory, receipt_text

EPOCH_S = 1_000.0
FIRST, SECOND = "1.0000000000001-000-n1-aa", "1.0000000000002-000-n2-bb"
STALE = Problem("stale", "too late")


class Told:
    """A history of queue `q` with group `g`, told call by call."""

    def __init__(self, **options: Any) -> None:
        self.history = LogHistory([], EPOCH_S, 0.5, True, 1e9, True, final={"q@g": "1.g/1"})
        self.call("create", 0.0, 0.1, "q", options={"consumed_s": 3_600.0, "mode": "ap", **options})
        self.group(0.1, 0.2)

    def call(self, op: str, began_s: float, ended_s: float | None, queue: str = "q@g", **fields: Any) -> Call:
        call = self.history.begin("who", "node", op, queue, began_s)
        call.ended_s = ended_s
        for name, value in fields.items():
            setattr(call, name, value)
        return call

    def group(self, began_s: float, ended_s: float, version: int = 1, start_at: float = 0.0, **options: Any) -> None:
        options = {"start": "earliest", **options, "generation": 1, "version": version, "start_at": start_at}
        self.call("create_group" if version == 1 else "seek", began_s, ended_s, options=options)

    def put(self, began_s: float, ended_s: float, body: bytes, place: str | None, **sent: Any) -> None:
        puts = [Put(place)] if place is not None else []
        error = None if puts else "unknown"
        self.call("put", began_s, ended_s, "q", sent=(Sent(body, **sent),), puts=puts, error=error)

    def get(self, began_s: float, ended_s: float, body: bytes, place: str, **fields: Any) -> str:
        reader, epoch = fields.pop("reader", "1.g/1"), fields.pop("epoch", 1)
        receipt = receipt_text(reader, epoch, fields.pop("delivery", 1), place)
        until_s = EPOCH_S + fields.pop("until_s", ended_s + 3.0)
        attributes, deliveries = fields.pop("attributes", {}), fields.pop("deliveries", 1)
        delivery = Delivery(place, receipt, body, attributes, EPOCH_S, deliveries, until_s)
        self.call("get", began_s, ended_s, deliveries=[delivery], **fields)
        return receipt

    def ack(self, began_s: float, ended_s: float, receipt: str, result: Done | Problem = Done()) -> None:  # noqa: B008
        self.call("ack", began_s, ended_s, receipts=(receipt,), results=[result])

    def through(self, at_s: float, body: bytes, place: str, **sent: Any) -> None:
        """Put, delivered, acked."""
        self.put(at_s, at_s + 0.1, body, place, **sent)
        attributes = sent.get("attributes", {})
        self.ack(at_s + 0.3, at_s + 0.4, self.get(at_s + 0.1, at_s + 0.2, body, place, attributes=attributes))

    def broken(self) -> set[int]:
        return {violation.promise for violation in check_log(self.history)}


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_message_that_was_put_delivered_and_acked_breaks_nothing(told: Told) -> None:
    told.through(1.0, b"m", f"{FIRST}:0")
    assert told.broken() == set()


def test_a_confirmed_message_that_no_reader_got_is_lost(told: Told) -> None:
    told.put(1.0, 1.1, b"m", f"{FIRST}:0")
    assert told.broken() == {1}


def test_a_message_of_before_the_groups_start_is_not_missed() -> None:
    told = Told()
    told.group(5.0, 5.1, version=2, start_at=EPOCH_S + 5.0)
    told.history.final["q@g"] = "1.g/2"
    told.put(1.0, 1.1, b"m", f"{FIRST}:0")
    assert told.broken() == set()
    told.put(6.0, 6.1, b"later", f"{FIRST}:1")
    assert told.broken() == {1}


def test_each_version_of_a_group_gets_a_message_once(told: Told) -> None:
    told.through(1.0, b"m", f"{FIRST}:0")
    told.group(5.0, 5.1, version=2)
    told.history.final["q@g"] = "1.g/2"
    told.ack(6.2, 6.3, told.get(6.0, 6.1, b"m", f"{FIRST}:0", reader="1.g/2"))
    assert told.broken() == set()
    told.get(7.0, 7.1, b"m", f"{FIRST}:0", reader="1.g/2", delivery=2, deliveries=2)
    assert told.broken() == {3}


def test_a_receipt_of_before_a_seek_is_refused(told: Told) -> None:
    told.put(1.0, 1.1, b"m", f"{FIRST}:0")
    receipt = told.get(1.1, 1.2, b"m", f"{FIRST}:0", until_s=60.0)
    told.group(5.0, 5.1, version=2)
    told.history.final["q@g"] = "1.g/2"
    told.ack(6.2, 6.3, told.get(6.0, 6.1, b"m", f"{FIRST}:0", reader="1.g/2"))
    told.ack(7.0, 7.1, receipt, STALE)
    assert told.broken() == set()
    told.ack(8.0, 8.1, receipt)
    assert told.broken() == {4}


def test_what_an_owner_delivered_another_may_deliver_again_but_not_the_same(told: Told) -> None:
    told.put(1.0, 1.1, b"m", f"{FIRST}:0")
    told.get(1.1, 1.2, b"m", f"{FIRST}:0", until_s=60.0)
    told.history.taken_over_s.append(2.0)
    receipt = told.get(2.1, 2.2, b"m", f"{FIRST}:0", epoch=2, until_s=60.0)
    told.ack(9.0, 9.1, receipt)
    assert told.broken() == set()
    told.get(2.5, 2.6, b"m", f"{FIRST}:0", epoch=2, delivery=2, until_s=60.0, deliveries=2)
    assert 2 in told.broken()


def test_a_sequenced_message_has_one_place(told: Told) -> None:
    told.put(1.0, 1.1, b"m", None, key="k")
    told.put(1.5, 1.6, b"m", f"{FIRST}:1", key="k")
    told.ack(2.2, 2.3, told.get(2.0, 2.1, b"m", f"{FIRST}:1"))
    assert told.broken() == set()
    told.get(3.0, 3.1, b"m", f"{FIRST}:0", delivery=2)
    assert 11 in told.broken()


def test_a_place_has_one_message(told: Told) -> None:
    told.through(1.0, b"m", f"{FIRST}:0")
    told.put(2.0, 2.1, b"other", f"{FIRST}:0")
    assert 11 in told.broken()


def test_nothing_confirmed_lies_behind_a_sealed_end_and_nothing_there_is_delivered(told: Told) -> None:
    told.through(1.0, b"m", f"{FIRST}:0")
    told.history.ends[FIRST] = 1
    assert told.broken() == set()
    told.through(2.0, b"behind", f"{FIRST}:1")
    assert told.broken() == {1, 11}


def test_no_number_before_a_sealed_end_is_missing(told: Told) -> None:
    told.through(1.0, b"m", f"{FIRST}:0")
    told.history.ends[FIRST] = 2
    assert told.broken() == {1}


def test_counts_never_fall_from_the_second_delivery_on(told: Told) -> None:
    told.put(1.0, 1.1, b"m", f"{FIRST}:0")
    told.get(1.1, 1.2, b"m", f"{FIRST}:0", until_s=2.0)
    told.get(3.0, 3.1, b"m", f"{FIRST}:0", delivery=2, deliveries=2, until_s=4.0)
    told.history.taken_over_s.append(5.0)
    told.ack(7.0, 7.1, told.get(6.0, 6.1, b"m", f"{FIRST}:0", epoch=2, deliveries=3))
    assert told.broken() == set()
    again = Told()
    again.put(1.0, 1.1, b"m", f"{FIRST}:0")
    again.get(3.0, 3.1, b"m", f"{FIRST}:0", delivery=2, deliveries=2, until_s=4.0)
    again.history.taken_over_s.append(5.0)
    again.ack(7.0, 7.1, again.get(6.0, 6.1, b"m", f"{FIRST}:0", epoch=2, deliveries=1))
    assert again.broken() == {2}


def test_a_chain_has_puts_in_the_order_of_their_confirmation() -> None:
    told = Told(mode="cp")
    told.through(1.0, b"m", f"{FIRST}:1")
    told.through(2.0, b"n", f"{SECOND}:0")
    assert told.broken() == set()
    told.through(3.0, b"o", f"{FIRST}:0")
    assert told.broken() == {6}


@pytest.mark.parametrize(("ordered", "colors", "broken"), [
    ("total", ("red", "blue"), {6}),
    ("group", ("red", "red"), {6}),
    ("group", ("red", "blue"), set()),
])  # fmt: skip
def test_an_ordered_queue_holds_back_what_is_behind_an_unfinished_one(
    ordered: str, colors: tuple[str, str], broken: set[int]
) -> None:
    told = Told(mode="cp", ordered=ordered, order_by="color")
    first, second = ({"color": color} for color in colors)
    told.put(1.0, 1.1, b"m", f"{FIRST}:0", attributes=first)
    told.put(1.2, 1.3, b"n", f"{FIRST}:1", attributes=second)
    held = told.get(2.0, 2.1, b"m", f"{FIRST}:0", attributes=first, until_s=60.0)
    told.ack(2.4, 2.5, told.get(2.2, 2.3, b"n", f"{FIRST}:1", delivery=2, attributes=second))
    told.ack(5.0, 5.1, held)
    assert told.broken() == broken


@pytest.mark.parametrize(("consumed_s", "broken"), [(2.0, set()), (3_600.0, {1, 6})])
def test_order_waits_for_nothing_in_an_extent_that_went_while_its_reader_came(
    consumed_s: float, broken: set[int]
) -> None:
    """All groups had consumed it, and then one of them sought back."""
    told = Told(mode="cp", ordered="total", consumed_s=consumed_s)
    told.history.final["q@g"] = "1.g/2"
    told.through(1.0, b"m", f"{FIRST}:0")
    told.group(5.0, 8.0, version=2)
    told.get(6.0, 6.1, b"m", f"{FIRST}:0", reader="1.g/2")
    told.put(9.0, 9.1, b"n", f"{SECOND}:0")
    told.ack(9.4, 9.5, told.get(9.2, 9.3, b"n", f"{SECOND}:0", reader="1.g/2"))
    assert told.broken() == broken


def test_a_filter_keeps_away_what_it_does_not_name() -> None:
    told = Told()
    told.history.calls[1].options["filter"] = {"color": ["red"]}  # type: ignore[assignment]
    told.put(1.0, 1.1, b"m", f"{FIRST}:0", attributes={"color": "blue"})
    assert told.broken() == set()
    told.get(2.0, 2.1, b"m", f"{FIRST}:0", attributes={"color": "blue"})
    assert 11 in told.broken()


def test_a_delayed_group_gets_nothing_early() -> None:
    told = Told()
    told.history.calls[1].options["delay_s"] = 2.0
    told.put(1.0, 1.1, b"m", f"{FIRST}:0")
    told.ack(4.0, 4.1, told.get(3.0, 3.5, b"m", f"{FIRST}:0"))
    assert told.broken() == set()
    told.put(5.0, 5.1, b"n", f"{FIRST}:1")
    told.ack(8.0, 8.1, told.get(5.5, 6.0, b"n", f"{FIRST}:1"))
    assert told.broken() == {5}


def test_what_is_left_and_what_broke_is_told(told: Told) -> None:
    told.history.left.append("an extent")
    told.history.broken.append("a task")
    assert told.broken() == {8, 9}
