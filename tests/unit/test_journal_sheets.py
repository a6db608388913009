"""Sheets: events in columns come out as they went in, and what is no sheet is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capellini.model.errors import Invalid
from capellini.queues.events import Account, Happened, Kind, Who, account
from capellini.queues.journal import HEADER, KINDS, Gathering, events_in, sheet_of

WHO = Who("n1", "i1")
ID = "ec5aa32049fa11f0b4ea590e9e8195fe"
runs = st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 2**40)), max_size=4).map(tuple)
ids = st.lists(st.binary(min_size=16, max_size=16).map(bytes.hex), max_size=4).map(tuple)
events = st.builds(
    Happened,
    node=st.just(WHO.node),
    incarnation=st.just(WHO.incarnation),
    number=st.just(0),
    at=st.integers(0, 2**52).map(lambda at_us: at_us / 1e6),
    kind=st.sampled_from(list(Kind)),
    queue=st.text(max_size=20),
    generation=st.integers(0, 2**60),
    runs=runs,
    version=st.integers(0, 2**31),
    detail=st.text(max_size=20),
    ids=ids,
)


def sheet(told: list[Happened], number: int = 1) -> bytes:
    gathering = Gathering()
    for one in told:
        gathering.add(one.at, one.kind, one.queue, one.generation, one.runs, one.version, one.detail, one.ids)
    assert gathering.events == len(told)
    made = gathering.taken(WHO, number)
    assert (gathering.events, gathering.size) == (0, 0)
    return made


def event(number: int, kind: Kind = Kind.PUT) -> Happened:
    return Happened(*WHO, number, 5.0 + number, kind, "q", 1, ((number * 10, 10),))


@given(st.lists(events, min_size=1, max_size=30), st.integers(1, 2**60))
@settings(max_examples=50, deadline=None)
def test_events_come_out_as_they_went_in(told: list[Happened], first: int) -> None:
    found = list(events_in(sheet(told, first)))
    assert [one.number for one in found] == list(range(first, first + len(told)))
    for one, other in zip(found, told, strict=True):
        assert abs(one.at - other.at) < 2e-6
        assert (one.kind, one.queue, one.generation, one.runs, one.version, one.detail, one.ids) == (
            other.kind, other.queue, other.generation, other.runs, other.version, other.detail, other.ids,
        )  # fmt: skip


@given(st.lists(events, min_size=1, max_size=10), st.data())
@settings(max_examples=60, deadline=None)
def test_a_sheet_that_was_cut_or_changed_is_refused_or_read_and_never_breaks_the_reader(
    told: list[Happened], data: st.DataObject
) -> None:
    whole = sheet(told)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(Invalid):
        sheet_of(cut)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    try:
        found = sheet_of(changed)
    except Invalid:
        return
    assert len(found.at_us) == len(found.runs) and sum(found.runs) == len(found.first)


def test_a_kind_of_event_keeps_its_place() -> None:
    assert set(KINDS) == set(Kind)
    assert [kind.value for kind in KINDS] == [
        "put", "delivered", "acked", "nacked", "extended", "dead", "expired", "repaired", "replayed", "cancelled",
        "moved", "closed", "skipped",
    ]  # fmt: skip


def test_a_missing_sheet_is_a_gap_and_no_closing_record_leaves_the_end_open() -> None:
    sheets = [sheet([event(at) for at in range(first, first + 4)], first) for first in (1, 5, 9)]
    last = sheet([event(13, Kind.CLOSED)], 13)
    whole = [one for body in (*sheets, last) for one in events_in(body)]
    assert account(whole)[WHO] == Account(13, (), True)
    lost = [one for body in (sheets[0], sheets[2], last, sheets[2]) for one in events_in(body)]
    assert account(lost)[WHO] == Account(13, ((5, 4),), True)
    assert account(one for body in sheets for one in events_in(body))[WHO] == Account(12, (), False)


def test_neighbours_in_time_take_few_bytes() -> None:
    """A life of single messages in a busy second: no more than a tenth of what its JSON takes."""
    told = [
        Happened(*WHO, at, 1_763_324_049 + at / 50_000, kind, "jobs", 3, ((900_000 + at // 3, 1),), min(at % 3, 1))
        for at, kind in enumerate((Kind.PUT, Kind.DELIVERED, Kind.ACKED) * 2_000)
    ]
    assert len(sheet(told)) / len(told) < 12


def test_ids_that_are_none_are_refused_and_leave_nothing_behind() -> None:
    gathering = Gathering()
    for wrong in (["no hex"], [ID[:-2]], ["1", ID]):
        with pytest.raises(ValueError):
            gathering.add(1.0, Kind.PUT, "t", 1, (), 0, "", wrong)
    gathering.add(1.0, Kind.PUT, "t", 1, (), 0, "", [ID])
    assert [one.ids for one in events_in(gathering.taken(WHO, 1))] == [(ID,)]


def test_a_later_version_says_so() -> None:
    body = bytearray(sheet([event(1)]))
    body[2] = 2
    with pytest.raises(Invalid, match="version 2"):
        sheet_of(bytes(body))
    with pytest.raises(Invalid, match="no sheet"):
        sheet_of(b"x" * HEADER.size)
