"""Compaction of archives in Parquet, without Spark: what is left alone, who waits for whom, and kills at every step."""

from __future__ import annotations

import datetime
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.compaction_child import BATCHES, DAYS, FILES, add, files_of, make, merge, rows_of

from capellini.model.errors import Invalid, Unavailable
from capellini.pipeline.jobs import compacting
from capellini.pipeline.jobs.compacting import compact_days, exchange
from capellini.pipeline.jobs.folders import begun, drop, end, is_over, link, writing

ROOT = Path(__file__).parents[2]
LAST = {f"batch={name}" for name in BATCHES if name.endswith("2")}


def test_killed_before_any_step_a_compaction_has_lost_nothing_and_doubled_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.compaction_child", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    steps, *_ = ran.stdout.split()
    print(ran.stdout)
    assert int(steps) > 50
    assert ran.stdout.strip().endswith("[4, 5, 6]"), "killed before, between and after the days"


def test_small_files_of_batches_that_are_done_become_one_and_the_last_of_each_query_stay(tmp_path: Path) -> None:
    make(tmp_path)
    before = {file: file.read_bytes() for file in files_of(tmp_path) if file.parent.name in LAST}
    rows = rows_of(tmp_path)
    assert compact_days(tmp_path, merge) == len(DAYS) * (4 * FILES - 1)
    assert rows_of(tmp_path) == rows
    assert {file: file.read_bytes() for file in files_of(tmp_path) if file.parent.name in LAST} == before
    left = {each.name for each in tmp_path.glob("queue=kept/day=*/batch=*/.*")}
    assert left == {".part-0.parquet.crc", ".part-1.parquet.crc"}, "checksums of what stays stay, too"
    assert compact_days(tmp_path, merge) == 0, "one file is no more than one"
    for day in DAYS:  # a later batch: the one before it is done
        add(tmp_path / "queue=kept" / day / "batch=abc-00000003", count(1_000))
    assert compact_days(tmp_path, merge) == len(DAYS) * FILES
    assert len(rows_of(tmp_path)) == len(rows) + len(DAYS) * 2 * FILES


def test_large_files_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    size = files_of(tmp_path)[0].stat().st_size
    monkeypatch.setattr(compacting, "SMALL_BYTES", size)
    files = {file: file.stat().st_ino for file in files_of(tmp_path)}
    assert compact_days(tmp_path, merge) == 0
    assert {file: file.stat().st_ino for file in files_of(tmp_path)} == files


def test_a_folder_that_keeps_its_name_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who has seen the names of folders, and looks into them after the exchange, would have fewer rows."""
    make(tmp_path)
    large = [file for file in files_of(tmp_path) if file.name == "part-1.parquet"]
    for file in large:
        pq.write_table(pa.table({"number": range(1_000), "body": [b"one"] * 1_000}), file)
    monkeypatch.setattr(compacting, "SMALL_BYTES", large[0].stat().st_size)
    rows, inodes = rows_of(tmp_path), {file.stat().st_ino for file in large}
    before = {file.parent: sorted(file.parent.iterdir()) for file in files_of(tmp_path)}
    assert compact_days(tmp_path, merge) == len(DAYS) * 3
    after = {file.parent: sorted(file.parent.iterdir()) for file in files_of(tmp_path)}
    kept = {folder: files for folder, files in before.items() if folder in after}
    assert {folder.name for folder in kept} == LAST
    assert {folder: after[folder] for folder in kept} == kept
    assert rows_of(tmp_path) == rows
    assert inodes <= {file.stat().st_ino for file in files_of(tmp_path)}, "large files are not written again"


def test_what_is_archived_while_files_are_made_is_kept_and_nobody_writes_during_the_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    rows = rows_of(tmp_path)

    def busy(files: Sequence[Path], into: Path, count_: int) -> None:
        merge(files, into, count_)
        with writing(str(tmp_path)):  # the last batch comes again, and the next one comes
            again = tmp_path / "queue=kept" / DAYS[0] / "batch=abc-00000002"
            held = {file: file.read_bytes() for file in again.glob("*.parquet")}
            shutil.rmtree(again)
            again.mkdir()
            for file, content in held.items():
                file.with_name(f"again-{file.name}").write_bytes(content)
            following = again.with_name("batch=abc-00000003")
            if not following.exists():
                add(following, count(1_000))

    def checked(one: Path, other: Path) -> None:
        with (tmp_path / "_writing").open("ab") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        exchange(one, other)

    monkeypatch.setattr(compacting, "exchange", checked)
    compact_days(tmp_path, busy)
    fresh = [(DAYS[0], number) for number in range(1_000, 1_000 + 2 * FILES)]
    assert rows_of(tmp_path) == sorted(rows + fresh)


def test_a_day_whose_rows_would_not_all_be_there_is_left_as_it_was(tmp_path: Path) -> None:
    make(tmp_path)
    rows, files = rows_of(tmp_path), files_of(tmp_path)
    with pytest.raises(Unavailable, match=r"16 rows of .* became 14: it was left as it was"):
        compact_days(tmp_path, lambda files, into, count: merge(files[1:], into, count))
    assert (rows_of(tmp_path), files_of(tmp_path)) == (rows, files)
    assert not (tmp_path / "_compacting").exists()


def test_a_replay_has_what_was_there_when_it_began_whatever_is_compacted_and_dropped_with_its_day(
    tmp_path: Path,
) -> None:
    make(tmp_path)
    rows = rows_of(tmp_path)
    place = begun(str(tmp_path), "name")
    for day in DAYS:
        add(tmp_path / "queue=kept" / day / "batch=abc-00000003", count(1_000))
    compact_days(tmp_path, merge)
    assert begun(str(tmp_path), "name") == place
    assert rows_of(place) == rows
    assert drop(tmp_path, datetime.date(2030, 2, 1)) == ["2030-01-31"]
    for root in (tmp_path, place):
        assert {day for day, _ in rows_of(root)} == {DAYS[1]}
    end(place)
    assert is_over(begun(str(tmp_path), "name"))
    os.rmdir(place)
    assert len(rows_of(begun(str(tmp_path), "name"))) == len(rows_of(tmp_path))


def test_links_that_were_not_finished_are_made_anew(tmp_path: Path) -> None:
    make(tmp_path)
    link(tmp_path / "queue=kept" / DAYS[0], tmp_path / "_replays" / ".name" / "queue=kept" / DAYS[0])
    assert rows_of(begun(str(tmp_path), "name")) == rows_of(tmp_path)


def test_where_folders_cannot_be_exchanged_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"cannot exchange .*No such file.*use --form delta"):
        exchange(tmp_path / "none", tmp_path)
