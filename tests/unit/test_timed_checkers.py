"""The checkers of timed queues' own promises see what they are there to see, and accuse nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.checkers import Call, History, Sent

from capellini.model.message import Delivery
from capellini.model.receipts import receipts_of
from capellini.model.service import Done, Put
from capellini.proof.timed_checkers import check_timed

EPOCH_S = 1_000.0


class Told:
    """A history of one message of one queue, told call by call."""

    def __init__(self) -> None:
        self.history = History([], EPOCH_S, 0.5, True, 1e9, True, [], [])

    def call(self, op: str, began_s: float, ended_s: float | None, **fields: Any) -> Call:
        call = self.history.begin("who", "node", op, "q", began_s)
        call.ended_s = ended_s
        for name, value in fields.items():
            setattr(call, name, value)
        return call

    def put(self, began_s: float, ended_s: float | None, id: str | None = None) -> None:
        self.call("put", began_s, ended_s, sent=(Sent(b"m", {}, 0.0, "k"),), puts=[Put(id)] if id else [])

    def cancel(self, began_s: float, ended_s: float, id: str) -> None:
        self.call("cancel", began_s, ended_s, ids=(id,), seconds=(), results=[Done()])

    def move(self, began_s: float, ended_s: float, id: str, seconds: float) -> None:
        self.call("move", began_s, ended_s, ids=(id,), seconds=(seconds,), results=[Done()])

    def get(self, began_s: float, ended_s: float, id: str) -> None:
        receipt = receipts_of(1, int(id), 1, 1, bytes(8))[0]
        delivery = Delivery(id, receipt, b"m", {}, EPOCH_S, 1, EPOCH_S + ended_s + 5.0)
        self.call("get", began_s, ended_s, deliveries=[delivery])
        self.call("ack", ended_s, ended_s + 0.1, receipts=(receipt,), results=[Done()])

    def broken(self) -> set[int]:
        return {violation.promise for violation in check_timed(self.history)}


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_message_that_is_delivered_after_its_cancel_was_confirmed(told: Told) -> None:
    told.put(0.0, 0.1, "1")
    told.cancel(0.2, 0.3, "1")
    assert told.broken() == set()
    told.get(0.4, 0.5, "1")
    assert told.broken() == {3}


def test_a_get_that_was_under_way_may_have_had_what_was_cancelled(told: Told) -> None:
    told.put(0.0, 0.1, "1")
    told.get(0.25, 0.5, "1")
    told.cancel(0.2, 0.3, "1")
    assert told.broken() == set()


def test_a_cancelled_message_that_comes_under_another_id_of_its_key(told: Told) -> None:
    told.put(0.0, None)
    told.put(0.0, 0.1, "1")
    told.cancel(0.2, 0.3, "1")
    told.get(5.0, 5.1, "2")
    assert 3 in told.broken()


def test_a_put_that_reaches_the_queue_after_it_was_made_anew_knows_of_no_cancel(told: Told) -> None:
    told.put(0.0, None)
    told.put(0.0, 0.1, "1")
    told.cancel(0.2, 0.3, "1")
    told.call("delete", 1.0, 1.1)
    told.call("create", 1.2, 1.3)
    told.get(5.0, 5.1, "2")
    assert told.broken() == set()


def test_the_cancelled_message_itself_stays_away_also_from_a_queue_made_anew(told: Told) -> None:
    told.put(0.0, None)
    told.put(0.0, 0.1, "1")
    told.cancel(0.2, 0.3, "1")
    told.call("delete", 1.0, 1.1)
    told.call("create", 1.2, 1.3)
    told.get(5.0, 5.1, "1")
    assert 3 in told.broken()


@pytest.mark.parametrize(("at_s", "broken"), [(2.0, {5}), (4.5, set())])
def test_a_moved_message_before_its_new_due(told: Told, at_s: float, broken: set[int]) -> None:
    told.put(0.0, 0.1, "1")
    told.move(0.2, 0.3, "1", 4.0)
    told.get(at_s, at_s + 0.1, "1")
    assert told.broken() == broken


def test_a_put_that_reaches_the_queue_after_it_was_emptied_knows_of_no_move(told: Told) -> None:
    told.put(0.0, None)
    told.put(0.0, 0.1, "1")
    told.move(0.2, 0.3, "1", 4.0)
    told.call("purge", 1.0, 1.1)
    told.get(2.0, 2.1, "2")
    assert told.broken() == set()
