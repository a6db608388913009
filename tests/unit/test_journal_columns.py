"""A sheet of the journal as an Arrow batch: the same events as one after the other, a row for each run or id."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.test_journal_sheets import WHO, event, events, sheet

from capellini.model.errors import Invalid
from capellini.pipeline.journal.columns import COLUMNS, batch_of
from capellini.queues.events import Happened, Kind
from capellini.queues.journal import events_in


def rows_of(told: Happened) -> list[tuple[object, ...]]:
    named: list[tuple[object, ...]] = [(first, count, None) for first, count in told.runs]
    named += [(None, None, id) for id in told.ids]
    return [
        (told.node, told.incarnation, told.number, told.at, told.kind.value, told.queue, told.generation, *one,
         told.version, told.detail)
        for one in named or [(None, None, None)]
    ]  # fmt: skip


@given(st.lists(events.filter(lambda one: one.version < 2**31), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_a_batch_has_a_row_for_each_run_and_each_id_of_the_events(told: list[Happened]) -> None:
    body = sheet(told, 7)
    batch = batch_of(body)
    assert tuple(batch.schema.names) == COLUMNS
    found = [tuple(row.values()) for row in batch.to_pylist()]
    assert found == [row for one in events_in(body) for row in rows_of(one)]


def test_the_closing_record_is_a_row_without_ids() -> None:
    (row,) = batch_of(sheet([Happened(*WHO, 9, 5.0, Kind.CLOSED)], 9)).to_pylist()
    assert (row["number"], row["kind"], row["first"], row["count"], row["id"]) == (9, "closed", None, None, None)


def test_what_is_no_sheet_is_refused() -> None:
    with pytest.raises(Invalid):
        batch_of(sheet([event(1)])[:-1])
