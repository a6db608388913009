"""Timestamps of the embedded store: one that is ahead of the clock matters to its own table only, also when the folder
is opened again."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.unit.rocks_stores import CHECKED, PLAIN, keys, opened, row

from capellini.model.clock import RealClock
from capellini.store import folder as folders
from capellini.store.interface import ABSENT, Batch, Cas, Change, Slice
from capellini.store.layout import CLOCK_KEY
from capellini.store.rocks.stamps import Stamps

FAR_US = 1 << 62


async def test_a_timestamp_far_ahead_in_one_table_keeps_nothing_in_another_from_being_dropped(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.write(Batch(PLAIN, ("p",), (row(1),), timestamp_us=FAR_US))
    change = Change((), ABSENT, {"v": "here"})
    assert (await store.compare_and_set(Cas(CHECKED, ("p",), (change,)))).applied
    await store.drop(CHECKED, ("p",))
    assert (await store.read(Slice(CHECKED, ("p",)))).rows == []
    await store.close()


async def test_a_timestamp_ahead_still_wins_after_opening_again(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    await first.write(Batch(PLAIN, ("p",), (row(1, b"ahead"),), timestamp_us=FAR_US))
    await first.close()
    second = await opened(tmp_path)
    await second.write(Batch(PLAIN, ("p",), (row(1, b"now"), row(2, b"now"))))
    page = await second.read(Slice(PLAIN, ("p",)))
    assert [found.values["v"] for found in page.rows] == [b"ahead", b"now"]
    await second.close()


def test_what_is_kept_is_never_too_low_and_each_table_has_its_own() -> None:
    stamps = Stamps(RealClock())
    now_us = stamps.tick(stamps.now_us())
    stamps.wrote(1, now_us)
    stamps.wrote(2, FAR_US)
    kept = stamps.to_keep()
    assert kept is not None and stamps.to_keep() is None
    stamps.wrote(2, FAR_US + 999_999)
    assert stamps.to_keep() is None  # within the second that is added after opening
    again = Stamps(RealClock())
    again.load(kept)
    assert not again.newest(2, FAR_US + 999_999) and again.above(2) > FAR_US + 999_999
    assert not again.newest(1, now_us) and again.newest(1, again.tick(now_us) + 1)
    assert again.newest(3, 1)
    stamps.wrote(2, FAR_US + 1_000_000)
    assert stamps.to_keep() is not None


async def test_a_folder_of_the_first_format_is_taken_up_with_what_it_knew(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.write(Batch(PLAIN, ("p",), (row(1, b"ahead"),), timestamp_us=FAR_US))
    store._database.rows.put(CLOCK_KEY, struct.pack(">qq", int(RealClock().now_s() * 1e6), FAR_US))
    await store.close()
    folders.write_format(tmp_path, 1)
    for _ in range(2):  # and kept, table by table, when it is opened once more
        again = await opened(tmp_path)
        await again.write(Batch(PLAIN, ("p",), (row(1, b"now"),)))
        page = await again.read(Slice(PLAIN, ("p",)))
        assert [found.values["v"] for found in page.rows] == [b"ahead"]
        assert await keys(again) == [1]
        await again.close()
    assert folders.read_format(tmp_path) == folders.FORMAT
