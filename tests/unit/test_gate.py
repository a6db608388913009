"""The gate lets in what the node can do, and says why not otherwise."""

from __future__ import annotations

import pytest

from capellini.api.gate import Gate
from capellini.api.limits import Limits
from capellini.api.router import Kind
from capellini.model.errors import CapelliniError, Full, Overloaded, Unavailable
from capellini.node.condition import GOOD, Condition

WORK = (Kind.READ, Kind.CHANGE, Kind.TIDY, Kind.PUT, Kind.TAKE, Kind.FINISH)
SMALL = Limits(max_requests=4, max_waiting=2, max_bytes=1_000)


def let_in(condition: Condition) -> set[Kind]:
    found = set()
    for kind in Kind:
        gate = Gate(SMALL)
        gate.condition = condition
        if gate.admit(kind, 10) is None:
            found.add(kind)
    return found


@pytest.mark.parametrize(
    ("condition", "kinds"),
    [
        (GOOD, set(Kind)),
        (Condition(skewed="clocks", skew_s=2.0), set(Kind)),
        (Condition(draining=True), {Kind.SYSTEM, Kind.FINISH, Kind.READ}),
        (Condition(down="the store is away"), {Kind.SYSTEM}),
        (Condition(full="the disk is full"), {Kind.SYSTEM, Kind.READ, Kind.TIDY, Kind.TAKE, Kind.FINISH}),
        (Condition(draining=True, full="the disk is full"), {Kind.SYSTEM, Kind.FINISH, Kind.READ}),
    ],
)
def test_what_is_let_in_depends_on_the_condition(condition: Condition, kinds: set[Kind]) -> None:
    assert let_in(condition) == kinds


def refused(gate: Gate, kind: Kind, size: int = 0) -> CapelliniError:
    error = gate.admit(kind, size)
    assert error is not None
    assert error.retry_after_s is not None
    return error


def test_refusals_say_why_and_when_to_come_again() -> None:
    gate = Gate(SMALL)
    gate.condition = Condition(draining=True)
    assert type(refused(gate, Kind.PUT)) is Unavailable
    gate.condition = Condition(full="the disk is full")
    assert type(refused(gate, Kind.PUT)) is Full
    gate.condition = Condition(down="the store is away")
    assert refused(gate, Kind.READ).says == "the store is away"
    assert (gate.refused["draining"], gate.refused["full"], gate.refused["down"]) == (1, 1, 1)


def test_requests_in_flight_are_limited_and_acks_have_room_beyond() -> None:
    gate = Gate(SMALL)
    for _ in range(4):
        assert gate.admit(Kind.PUT, 0) is None
    assert type(refused(gate, Kind.PUT)) is Overloaded
    assert gate.admit(Kind.FINISH, 0) is None
    assert type(refused(gate, Kind.FINISH)) is Overloaded
    assert gate.admit(Kind.SYSTEM, 0) is None
    gate.leave(Kind.PUT, 0)
    gate.leave(Kind.PUT, 0)
    assert gate.admit(Kind.PUT, 0) is None
    assert gate.refused["requests"] == 2


def test_gets_have_a_limit_of_their_own() -> None:
    gate = Gate(SMALL)
    assert [gate.admit(Kind.TAKE, 0) for _ in range(2)] == [None, None]
    assert type(refused(gate, Kind.TAKE)) is Overloaded
    assert gate.admit(Kind.PUT, 0) is None
    gate.leave(Kind.TAKE, 0)
    assert gate.admit(Kind.TAKE, 0) is None


def test_bytes_count_before_they_are_read_and_until_the_answer() -> None:
    gate = Gate(SMALL)
    assert gate.admit(Kind.PUT, 900) is None
    assert type(refused(gate, Kind.PUT, 101)) is Overloaded
    assert gate.admit(Kind.FINISH, 101) is None
    assert gate.in_flight == 2
    gate.leave(Kind.PUT, 900)
    gate.leave(Kind.FINISH, 101)
    assert (gate.in_flight, gate.bytes, gate.refused["bytes"]) == (0, 0, 1)


def test_a_body_of_unknown_length_counts_as_it_grows() -> None:
    gate = Gate(SMALL)
    assert gate.admit(Kind.PUT, 0) is None
    assert gate.grow(Kind.PUT, 1_000) is None
    assert type(gate.grow(Kind.PUT, 1)) is Overloaded
    gate.leave(Kind.PUT, 1_000)
    assert gate.bytes == 0
