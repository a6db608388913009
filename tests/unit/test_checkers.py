"""The checkers see what they are there to see, and accuse nobody else: each promise broken once and kept once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.checkers import CHECKERS, Call, History, Sent, check

from capellini.model.message import Delivery
from capellini.model.receipts import receipts_of
from capellini.model.service import Done, Problem, Put

EPOCH_S = 1_000.0
STALE = Problem("stale", "too late")


class Told:
    """A history, told call by call. Times are true times; clocks are right unless said otherwise."""

    def __init__(self) -> None:
        self.history = History([], EPOCH_S, 0.5, True, 1e9, True, [], [])

    def call(self, op: str, began_s: float, ended_s: float | None, queue: str = "q", **fields: Any) -> Call:
        call = self.history.begin("who", "node", op, queue, began_s)
        call.ended_s = ended_s
        for name, value in fields.items():
            setattr(call, name, value)
        return call

    def put(self, began_s: float, ended_s: float | None, body: bytes = b"m", **fields: Any) -> Call:
        sent = Sent(body, {}, fields.pop("delay_s", 0.0), fields.pop("key", None))
        answer = fields.pop("answer", Put("0"))
        return self.call("put", began_s, ended_s, sent=(sent,), puts=[answer] if answer else [], **fields)

    def get(self, began_s: float, ended_s: float, version: int = 1, until_s: float = 10.0, **fields: Any) -> str:
        id, body, generation = fields.pop("id", 0), fields.pop("body", b"m"), fields.pop("generation", 1)
        receipt = receipts_of(generation, id, 1, version, bytes(8))[0]
        delivery = Delivery(str(id), receipt, body, fields.pop("attributes", {}), EPOCH_S, version, EPOCH_S + until_s)
        self.call("get", began_s, ended_s, deliveries=[delivery], **fields)
        return receipt

    def use(
        self, op: str, receipt: str, began_s: float, ended_s: float | None, result: Any = None, **fields: Any
    ) -> Call:
        seconds = (fields.pop("seconds", None),)
        results = [] if result is None else [result]
        return self.call(op, began_s, ended_s, receipts=(receipt,), seconds=seconds, results=results, **fields)

    def broken(self) -> set[int]:
        return {violation.promise for violation in check(self.history)}


@pytest.fixture
def told() -> Told:
    return Told()


def test_there_is_a_checker_for_each_promise_that_a_work_queue_gives() -> None:
    assert set(CHECKERS) == {1, 2, 3, 4, 5, 8, 9, 10, 11}


def test_a_whole_life_breaks_nothing(told: Told) -> None:
    told.put(0.0, 0.1)
    first = told.get(0.2, 0.3, until_s=5.0)
    told.use("nack", first, 1.0, 1.1, Done(EPOCH_S + 2.0), seconds=0.0)
    second = told.get(1.2, 1.3, version=2, until_s=6.0)
    told.use("ack", first, 1.4, 1.5, STALE)
    told.use("ack", second, 1.6, 1.7, Done())
    assert told.broken() == set()


# 1


def test_a_confirmed_put_that_never_came_is_lost(told: Told) -> None:
    told.put(0.0, 0.1)
    assert told.broken() == {1}


def test_a_delivery_alone_is_not_the_end_of_a_message(told: Told) -> None:
    told.put(0.0, 0.1)
    told.get(0.2, 0.3)
    assert told.broken() == {1}


@pytest.mark.parametrize("fields", [{"answer": None, "error": "unknown"}, {"answer": None, "error": "unavailable"}])
def test_a_put_that_was_not_confirmed_may_be_gone(told: Told, fields: dict[str, Any]) -> None:
    told.put(0.0, 0.1, **fields)
    assert told.broken() == set()


@pytest.mark.parametrize(
    ("ack", "lost"),
    [
        ({"ended_s": None}, False),
        ({"ended_s": 0.5, "error": "unknown"}, False),
        ({"ended_s": 0.5, "error": "unavailable"}, True),
    ],
)
def test_an_open_or_unknown_ack_may_have_ended_it_but_a_refused_one_did_not(
    told: Told, ack: dict[str, Any], lost: bool
) -> None:
    told.put(0.0, 0.1)
    receipt = told.get(0.2, 0.3)
    told.use("ack", receipt, 0.4, **ack)
    assert told.broken() == ({1} if lost else set())


@pytest.mark.parametrize(("key", "broken"), [("k", set()), (None, {1})])
def test_a_message_that_was_purged_among_the_dead_letters_before_its_key_was_confirmed_is_not_lost(
    told: Told, key: str | None, broken: set[int]
) -> None:
    told.call("create", 0.0, 0.1, options={"dead_letters": "dead", "delivery_limit": 1})
    told.put(0.2, None, answer=None, key=key)
    told.get(0.4, 0.5, until_s=1.0)
    told.call("purge", 2.0, 2.1, "dead")
    told.put(3.0, 3.1, answer=Put("0", duplicate=key is not None), key=key)
    assert told.broken() == broken


def test_a_purge_excuses_what_was_there_and_not_what_came_after_it(told: Told) -> None:
    told.put(0.0, 0.1, b"before")
    told.call("purge", 1.0, 1.1)
    assert told.broken() == set()
    told.put(2.0, 2.1, b"after")
    assert told.broken() == {1}


# 2


def test_two_holders_at_once(told: Told) -> None:
    told.put(0.0, 0.1)
    told.get(0.2, 0.3, until_s=5.0)
    second = told.get(1.0, 1.1, version=2)
    told.use("ack", second, 1.2, 1.3, Done())
    assert told.broken() == {2}
    told.history.skew_kept = False
    assert told.broken() == set()


def test_a_letter_and_what_was_put_anew_after_a_purge_are_two_messages(told: Told) -> None:
    told.call("create", 0.0, 0.0, options={"dead_letters": "dead", "delivery_limit": 1})
    told.put(0.0, 0.1, key="k")
    told.get(0.2, 0.3, until_s=0.4)
    told.get(1.0, 1.1, queue="dead", until_s=9.0)
    told.put(3.0, 3.1, key="k", answer=Put("7"))
    told.get(4.0, 4.1, id=7, generation=2)
    assert 2 in told.broken()
    told.call("purge", 2.0, 2.1)
    assert 2 not in told.broken()


def test_one_after_the_other_is_fine_also_when_the_first_answer_comes_late(told: Told) -> None:
    told.put(0.0, 0.1)
    told.get(0.2, 9.0, until_s=5.0)
    second = told.get(6.0, 6.1, version=2)
    told.use("ack", second, 6.2, 6.3, Done())
    assert told.broken() == set()


def test_an_extended_receipt_is_valid_for_longer(told: Told) -> None:
    told.put(0.0, 0.1)
    first = told.get(0.2, 0.3, until_s=2.0)
    told.use("extend", first, 1.0, 1.1, Done(EPOCH_S + 8.0), seconds=7.0)
    second = told.get(3.0, 3.1, version=2)
    told.use("ack", second, 3.2, 3.3, Done())
    assert told.broken() == {2}


def test_a_clock_that_is_ahead_makes_a_receipt_end_earlier(told: Told) -> None:
    told.put(0.0, 0.1)
    told.get(0.2, 0.3, until_s=2.0, ahead_s=0.5)
    second = told.get(1.55, 1.6, version=2)
    told.use("ack", second, 1.65, 1.7, Done())
    assert told.broken() == set()


def test_a_valid_receipt_that_is_refused(told: Told) -> None:
    told.put(0.0, 0.1)
    receipt = told.get(0.2, 0.3, until_s=5.0)
    told.use("ack", receipt, 0.4, 0.5, STALE)
    assert 2 in told.broken()


# 3 and 4


def test_delivered_again_after_a_confirmed_ack(told: Told) -> None:
    told.put(0.0, 0.1)
    receipt = told.get(0.2, 0.3)
    told.use("ack", receipt, 0.4, 0.5, Done())
    told.get(1.0, 1.1, version=2)
    assert told.broken() == {3}


def test_delivered_again_under_another_id_after_a_confirmed_ack(told: Told) -> None:
    told.put(0.0, 0.1)
    receipt = told.get(0.2, 0.3)
    told.use("ack", receipt, 0.4, 0.5, Done())
    told.get(1.0, 1.1, id=7)
    assert told.broken() == {3}


@pytest.mark.parametrize("op", ["ack", "nack", "extend"])
def test_a_stale_receipt_that_is_accepted(told: Told, op: str) -> None:
    told.put(0.0, 0.1)
    first = told.get(0.2, 0.3, until_s=1.0)
    second = told.get(2.0, 2.1, version=2)
    told.use(op, first, 3.0, 3.1, Done())
    told.use("ack", second, 4.0, None)
    assert 4 in told.broken()


def test_an_acked_receipt_that_is_accepted_again(told: Told) -> None:
    told.put(0.0, 0.1)
    receipt = told.get(0.2, 0.3)
    told.use("ack", receipt, 0.4, 0.5, Done())
    told.use("ack", receipt, 0.6, 0.7, Done())
    assert told.broken() == {4}


def test_a_receipt_of_a_purged_generation_that_is_accepted(told: Told) -> None:
    told.put(0.0, 0.1)
    receipt = told.get(0.2, 0.3)
    told.call("purge", 1.0, 1.5)
    told.use("ack", receipt, 2.0, 2.1, Done())
    assert told.broken() == {4}


# 5


def test_a_delayed_message_before_its_time(told: Told) -> None:
    told.put(0.0, 0.1, delay_s=2.0)
    receipt = told.get(1.0, 1.1)
    told.use("ack", receipt, 1.2, 1.3, Done())
    assert told.broken() == {5}


def test_a_nacked_message_before_its_time(told: Told) -> None:
    told.put(0.0, 0.1)
    first = told.get(0.2, 0.3)
    told.use("nack", first, 0.4, 0.5, Done(), seconds=3.0)
    second = told.get(1.0, 1.1, version=2)
    told.use("ack", second, 1.2, 1.3, Done())
    assert told.broken() == {5}


# 8 and 9


def test_what_is_left_in_the_store_and_what_failed_inside(told: Told) -> None:
    told.history.left.append("bucket 3")
    assert told.broken() == {8}
    told.history.broken.append("a node failed")
    assert told.broken() == {8, 9}


def test_a_bad_request_that_was_done(told: Told) -> None:
    told.call("ack", 0.0, 0.1, bad="no receipts", error="invalid")
    assert told.broken() == set()
    told.call("get", 0.0, 0.1, bad="no count")
    assert told.broken() == {9}


@pytest.mark.parametrize("error", ["unavailable", "not_found", "too_large"])
def test_a_put_that_said_no_and_was_delivered(told: Told, error: str) -> None:
    told.put(0.0, 0.1, answer=None, error=error)
    receipt = told.get(0.2, 0.3)
    told.use("ack", receipt, 0.4, 0.5, Done())
    assert told.broken() == {9}


# 10


@pytest.mark.parametrize(("waited_s", "broken"), [(1.9, False), (2.5, True)])
def test_a_get_that_waits_beside_a_message_that_can_be_had(told: Told, waited_s: float, broken: bool) -> None:
    told.history.calm_from_s = 0.0
    told.put(1.0, 1.1)
    told.call("get", 0.5, 1.1 + waited_s, wait_s=5.0)
    receipt = told.get(6.0, 6.1)
    told.use("ack", receipt, 6.2, 6.3, Done())
    assert told.broken() == ({10} if broken else set())


def test_nothing_is_said_of_a_get_that_waits_while_things_go_wrong(told: Told) -> None:
    told.put(1.0, 1.1)
    told.call("get", 0.5, 5.0, wait_s=5.0)
    receipt = told.get(6.0, 6.1)
    told.use("ack", receipt, 6.2, 6.3, Done())
    assert told.broken() == set()


# 11


def test_a_message_that_nobody_put(told: Told) -> None:
    told.get(0.0, 0.1, body=b"ghost")
    assert told.broken() == {11}


def test_attributes_that_changed_on_the_way(told: Told) -> None:
    told.put(0.0, 0.1)
    receipt = told.get(0.2, 0.3, attributes={"a": "b"})
    told.use("ack", receipt, 0.4, 0.5, Done())
    assert told.broken() == {11}


def test_one_key_confirmed_as_two_ids(told: Told) -> None:
    told.put(0.0, 0.1, key="k")
    told.put(1.0, 1.1, key="k", answer=Put("5"))
    receipt = told.get(2.0, 2.1)
    told.use("ack", receipt, 2.2, 2.3, Done())
    assert told.broken() == {11}


def test_a_message_of_a_deleted_queue_in_its_successor(told: Told) -> None:
    told.put(0.0, 0.1)
    told.call("delete", 1.0, 1.5)
    told.call("create", 2.0, 2.1)
    receipt = told.get(3.0, 3.1, generation=2)
    told.use("ack", receipt, 3.2, 3.3, Done())
    assert told.broken() == {11}
