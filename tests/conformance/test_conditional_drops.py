"""Dropping a partition together with a condition: what it leaves, and what races with it."""

from __future__ import annotations

import asyncio

from tests.conformance.harness import SERIAL, Harness, every_store
from tests.conformance.tables import GUARDED
from tests.conformance.test_writes import SOON_S

from capellini.store.interface import ABSENT, Change, Key, Value

MARKER: dict[str, Value] = {"dropped": b"marker"}


async def filled(h: Harness) -> str:
    p = h.key()
    await h.put(GUARDED, p, {(k,): {"body": b"x"} for k in range(5)}, static={"note": "n"})
    rows = (Change((1,), {"state": None}, {"state": "a"}), Change((9,), ABSENT, {"state": "b"}))
    assert (await h.cas(GUARDED, p, *rows)).applied
    assert (await h.cas(GUARDED, p, Change(None, {"version": None}, {"version": 1, "head": "h"}))).applied
    return p


@every_store
async def test_everything_goes_and_the_marker_stays(h: Harness) -> None:
    p = await filled(h)
    done = await h.cas(GUARDED, p, Change(None, {"version": 1, "dropped": None}, MARKER), drop=True)
    assert done.applied and done.rows == {}
    page = await h.read(GUARDED, p, level=SERIAL)
    assert page.rows == [] and page.static == MARKER


@every_store
async def test_a_refused_drop_changes_nothing_and_shows_the_static_row(h: Harness) -> None:
    p = await filled(h)
    before = await h.read(GUARDED, p, level=SERIAL)
    refused = await h.cas(GUARDED, p, Change(None, {"version": 2, "dropped": None}, MARKER), drop=True)
    assert not refused.applied and refused.rows[None]["version"] == 1
    assert await h.read(GUARDED, p, level=SERIAL) == before


@every_store
async def test_after_a_drop_the_marker_refuses_and_the_cells_are_free(h: Harness) -> None:
    p = await filled(h)
    assert (await h.cas(GUARDED, p, Change(None, {"version": 1}, MARKER), drop=True)).applied
    guarded = await h.cas(
        GUARDED, p, Change(None, {"dropped": None}, {"version": 2}), Change((1,), None, {"state": "c"})
    )
    assert not guarded.applied and guarded.rows[None] == MARKER
    assert (await h.cas(GUARDED, p, Change(None, {"version": None}, {"version": 5}))).applied
    assert (await h.cas(GUARDED, p, Change((1,), ABSENT, {"state": "new"}))).applied
    page = await h.read(GUARDED, p, level=SERIAL)
    assert page.static == {**MARKER, "version": 5} and [row.values for row in page.rows] == [{"state": "new"}]


@every_store
async def test_a_partition_without_rows_can_be_dropped(h: Harness) -> None:
    p = h.key()
    assert (await h.cas(GUARDED, p, Change(None, {"dropped": None}, MARKER), drop=True)).applied
    assert not (await h.cas(GUARDED, p, Change(None, {"dropped": None}, MARKER), drop=True)).applied
    assert await h.static(GUARDED, p) == MARKER


@every_store
async def test_the_marker_can_have_a_time_to_live_and_rows_stay_gone(h: Harness) -> None:
    p = await filled(h)
    assert (await h.cas(GUARDED, p, Change(None, {"version": 1}, MARKER), drop=True, ttl_s=SOON_S)).applied

    async def ended() -> bool:
        page = await h.read(GUARDED, p, level=SERIAL)
        assert page.rows == [] and page.static in ({}, MARKER)
        return page.static == {}

    await h.until(ended, "the marker ends")
    assert (await h.cas(GUARDED, p, Change(None, {"dropped": None}, {"version": 1}))).applied


@every_store
async def test_plain_writes_before_a_drop_are_gone_and_those_after_it_stay(h: Harness) -> None:
    p = await filled(h)
    await h.put(GUARDED, p, {(20,): {"body": b"before"}})
    assert (await h.cas(GUARDED, p, Change(None, {"version": 1}, MARKER), drop=True)).applied
    await h.put(GUARDED, p, {(21,): {"body": b"after"}})
    assert await h.rows(GUARDED, p, level=SERIAL) == {(21,): {"body": b"after"}}


@every_store
async def test_of_a_drop_and_the_writes_it_races_with_each_is_wholly_before_or_after(h: Harness) -> None:
    for _ in range(3):
        p = h.key()
        assert (await h.cas(GUARDED, p, Change(None, {"version": None}, {"version": 0}))).applied
        dropped = asyncio.Event()

        async def write(task: int, p: str = p, dropped: asyncio.Event = dropped) -> list[Key]:
            applied: list[Key] = []
            for number in range(6):
                key: Key = (task * 100 + number,)
                late = dropped.is_set()
                outcome = await h.cas(
                    GUARDED, p, Change(None, {"dropped": None}, {"head": "h"}), Change(key, None, {"state": "a"})
                )
                if outcome.applied:
                    assert not late
                    applied.append(key)
                elif outcome.rows[None].get("dropped") == MARKER["dropped"]:
                    break
            return applied

        async def drop(p: str = p, dropped: asyncio.Event = dropped) -> bool:
            for _ in range(2):
                await h.read(GUARDED, p)
            outcome = await h.cas(GUARDED, p, Change(None, {"dropped": None}, MARKER), drop=True)
            dropped.set()
            return outcome.applied

        ended, *_ = await asyncio.gather(drop(), write(1), write(2), write(3))
        assert ended
        page = await h.read(GUARDED, p, level=SERIAL)
        assert page.rows == [] and page.static == MARKER


@every_store
async def test_of_many_drops_one_is_applied(h: Harness) -> None:
    p = await filled(h)
    outcomes = await asyncio.gather(
        *(
            h.cas(GUARDED, p, Change(None, {"dropped": None}, {"dropped": bytes([number])}), drop=True)
            for number in range(6)
        )
    )
    winners = [number for number, outcome in enumerate(outcomes) if outcome.applied]
    assert len(winners) == 1
    assert (await h.read(GUARDED, p, level=SERIAL)).static == {"dropped": bytes([winners[0]])}
