"""Pages: what a group has finished of an extent, and what is written of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from capellini.queues.log.pages import HEAD, PAGE, Pages, next_of

_spans = st.tuples(st.integers(0, 3 * PAGE), st.integers(1, 300)).map(lambda p: (p[0], p[0] + p[1]))
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("finish"), _spans, st.just(0)),
        st.tuples(st.just("count"), _spans, st.integers(2, 9)),
        st.tuples(st.just("move"), _spans, st.just(0)),
        st.tuples(st.just("hide"), _spans, st.integers(1_700_000_000_000, 1_700_000_000_009)),
        st.tuples(st.just("write"), st.just((0, 0)), st.just(0)),
    ),
    max_size=40,
)


def _apply(pages: Pages, step: tuple[str, tuple[int, int], int]) -> None:
    verb, (first, end), value = step
    if verb == "finish":
        pages.finish(first, end)
    elif verb == "count":
        pages.count(first, end, value)
    elif verb == "move":
        pages.move(first, end)
    elif verb == "hide":
        pages.hide(first, end, value)


def _unfinished(pages: Pages, numbers: set[int]) -> dict[int, tuple[int, bool, int]]:
    return {
        number: (part.deliveries, part.moving, part.at_ms)
        for part in pages.open()
        for number in range(part.first, part.end)
        if number in numbers
    }


@settings(max_examples=25, deadline=None)
@given(_steps, st.integers(0, PAGE + 50))
def test_what_was_written_bit_by_bit_is_read_as_it_was(
    steps: list[tuple[str, tuple[int, int], int]], start: int
) -> None:
    pages = Pages(start)
    rows: dict[int, bytes] = {}
    for step in [*steps, ("write", (0, 0), 0)]:
        _apply(pages, step)
        if step[0] == "write":
            changed, head = pages.changes()
            rows.update(changed)
            rows[HEAD] = head
    again = Pages.decode(rows[HEAD], {number: data for number, data in rows.items() if number != HEAD})
    touched = {n for _, (first, end), _ in steps for n in range(first, end)} | {start, start + 1}
    assert again.next == pages.next == next_of(rows[HEAD])
    assert {n for n in touched if n in again} == {n for n in touched if n in pages}
    assert _unfinished(again, touched) == _unfinished(pages, touched)


@settings(max_examples=25, deadline=None)
@given(_steps)
def test_pages_tell_what_was_said(steps: list[tuple[str, tuple[int, int], int]]) -> None:
    pages = Pages()
    finished: set[int] = set()
    counts: dict[int, int] = {}
    moving: set[int] = set()
    hidden: dict[int, int] = {}
    for step in steps:
        verb, (first, end), value = step
        _apply(pages, step)
        if verb == "finish":
            finished.update(range(first, end))
        elif verb == "count":
            counts.update((n, value) for n in range(first, end) if n not in finished)
            hidden = {n: at_ms for n, at_ms in hidden.items() if not first <= n < end}
        elif verb == "move":
            moving.update(n for n in range(first, end) if n not in finished)
        elif verb == "hide":
            hidden.update((n, value) for n in range(first, end) if n not in finished)
    top = max([0, *(n + 1 for n in finished | set(counts) | moving | set(hidden))])
    assert pages.top == top
    wanted = {n: (counts.get(n, 0), n in moving, hidden.get(n, 0)) for n in range(top) if n not in finished}
    assert _unfinished(pages, set(range(top))) == wanted
    assert pages.next == min([n for n in range(top + 1) if n not in finished])


def test_acks_in_order_write_the_head_alone() -> None:
    pages = Pages()
    for first in range(0, 3 * PAGE, 500):
        pages.finish(first, first + 500)
        changed, head = pages.changes()
        assert changed == []
        assert next_of(head) == first + 500


def test_a_million_acks_in_any_order_take_little() -> None:
    pages = Pages()
    for first in range(1, 1_000_000, 2):
        pages.finish(first, first + 1)
    changed, _ = pages.changes()
    assert sum(len(data) for _, data in changed) < 250_000
    assert max(len(data) for _, data in changed) < 6_000


def test_of_a_page_that_is_finished_behind_one_that_is_not_little_is_kept() -> None:
    pages = Pages()
    pages.count(PAGE, 2 * PAGE, 2)
    pages.hide(PAGE, PAGE + 10, 1_700_000_000_000)
    pages.finish(1, 2 * PAGE)
    assert pages.next == 0 and pages.top == 2 * PAGE
    page = pages._pages[1]
    assert page.counts is None and page.hidden is None
    stored, head = pages.changes()
    assert [(one.first, one.end) for one in Pages.decode(head, dict(stored)).open()] == [(0, 1)]


def test_a_message_is_hidden_until_it_is_delivered_again_or_finished() -> None:
    pages = Pages()
    pages.hide(3, 6, 1_700_000_000_000)
    pages.count(4, 5, 2)
    pages.finish(5, 6)
    found = [(part.first, part.end, part.deliveries, part.at_ms) for part in pages.open(0, 8)]
    assert found == [(0, 3, 0, 0), (3, 4, 0, 1_700_000_000_000), (4, 5, 2, 0), (6, 8, 0, 0)]
