"""Events are numbered without gaps, and a reader knows what it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.event_files import read_events

from capellini.model.clock import RealClock
from capellini.queues.events import Account, Events, FileSink, Happened, Kind, MemorySink, account


class StillClock(RealClock):
    def now_s(self) -> float:
        return 12.5


def test_an_event_is_one_parcel_with_its_runs_and_numbers_have_no_gaps() -> None:
    sink = MemorySink()
    events = Events(StillClock(), "n1", "i1", sink)
    events.put("q", 2, [(0, 100), (250, 3)])
    events.delivered("q", 2, [(0, 100)], 1)
    events.acked("q", 2, [(0, 99)], 1)
    events.close()
    assert sink.events[0] == Happened("n1", "i1", 1, 12.5, Kind.PUT, "q", 2, ((0, 100), (250, 3)))
    assert [event.kind for event in sink.events] == ["put", "delivered", "acked", "closed"]
    assert [event.number for event in sink.events] == [1, 2, 3, 4]
    assert account(sink.events) == {("n1", "i1"): Account(4, (), True)}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.CLOSED])
def test_there_is_a_call_for_every_kind(kind: Kind) -> None:
    sink = MemorySink()
    events = Events(StillClock(), "n", "i", sink)
    versioned = kind in (Kind.DELIVERED, Kind.ACKED, Kind.NACKED, Kind.EXTENDED)
    getattr(events, kind.value)("q", 1, [(5, 2)], *((3,) if versioned else ()))
    assert [(event.kind, event.runs, event.version) for event in sink.events] == [(kind, ((5, 2),), 3 * versioned)]


def test_without_a_sink_nothing_is_kept_or_counted() -> None:
    events = Events(StillClock())
    events.put("q", 1, [(0, 1)])
    events.close()
    assert events.number == 0


def test_after_closing_nothing_more_is_kept() -> None:
    sink = MemorySink()
    events = Events(StillClock(), "n", "i", sink)
    events.close()
    events.put("q", 1, [(0, 1)])
    events.close()
    assert [event.kind for event in sink.events] == [Kind.CLOSED]


def test_a_file_holds_what_was_emitted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    memory, file = MemorySink(), FileSink(path, buffer_events=4)
    for sink in (memory, file):
        events = Events(StillClock(), "n", "i", sink)
        for at in range(10):
            events.put("q", 1, [(at * 10, 10)])
        events.close()
    assert list(read_events(path)) == list(memory.events)
    assert account(read_events(path))["n", "i"].complete


def test_an_incarnation_that_left_no_closing_record_is_not_complete_and_the_next_one_is(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    died = FileSink(path, buffer_events=2)
    events = Events(StillClock(), "n", "i1", died)
    for at in range(5):  # the fifth is still in the buffer
        events.put("q", 1, [(at, 1)])
    with path.open("ab") as file:
        file.write(b'{"node":"n","incar')  # cut in the middle of a line
    after = Events(StillClock(), "n", "i2", FileSink(path))
    after.put("q", 1, [(9, 1)])
    after.close()
    assert account(read_events(path)) == {("n", "i1"): Account(4, (), False), ("n", "i2"): Account(2, (), True)}


def test_what_the_system_does_not_take_is_counted_and_shows_as_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    full = FileSink(Path("/dev/full"), buffer_events=2)
    events = Events(StillClock(), "n", "i", full)
    events.put("q", 1, [(0, 1)])
    events.put("q", 1, [(1, 1)])
    assert full.dropped == 2
    good = FileSink(path)
    events._sink = good
    events.put("q", 1, [(2, 1)])
    events.close()
    assert account(read_events(path)) == {("n", "i"): Account(4, ((1, 2),), True)}


def test_gaps_are_found_in_any_order() -> None:
    def event(number: int) -> Happened:
        return Happened("n", "i", number, 0.0, Kind.PUT)

    assert account(map(event, (7, 2, 3, 3)))["n", "i"].missing == ((1, 1), (4, 3))


def test_a_file_that_ends_with_a_whole_line_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for incarnation in ("one", "two"):
        events = Events(StillClock(), "n", incarnation, FileSink(path))
        events.put("q", 1, [(0, 1)])
        events.flush()
        assert path.read_bytes().endswith(b"}\n")
        events.close()
    assert all(line.startswith("{") for line in path.read_text().splitlines())


def test_memory_keeps_the_last_ones(tmp_path: Path) -> None:
    sink = MemorySink(3)
    events = Events(StillClock(), "n", "i", sink)
    for at in range(9):
        events.put("q", 1, [(at, 1)])
    assert [event.runs[0][0] for event in sink.events] == [6, 7, 8]
