"""What can be replayed, told by the note in an archive and its folders: before Spark reads anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from capellini.model.errors import Invalid
from capellini.pipeline.jobs.archive import MESSAGES, SNAPSHOTS, _mark, check_replayable
from capellini.pipeline.source.asking import EVENTS


def archived(path: Path, of: str, *parts: str) -> str:
    _mark(str(path), of, "parquet")
    for part in parts:
        (path / "queue=jobs" / part).mkdir(parents=True)
    return str(path)


def test_one_of_several_snapshots_is_to_be_chosen(tmp_path: Path) -> None:
    one = archived(tmp_path / "one", SNAPSHOTS, "taken_at=2030-01-31T08-00-00Z")
    check_replayable(one, "")
    two = archived(tmp_path / "two", SNAPSHOTS, "taken_at=2030-01-31T08-00-00Z", "taken_at=2030-02-01T08-00-00Z")
    with pytest.raises(Invalid, match=r"has 2 snapshots.*taken_at = '2030-02-01T08-00-00Z'"):
        check_replayable(two, "attributes['a'] = 'b'")
    check_replayable(two, "taken_at = '2030-01-31T08-00-00Z'")


def test_a_journal_has_nothing_to_put_and_messages_have(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="has no bodies"):
        check_replayable(archived(tmp_path / "journal", EVENTS), "")
    check_replayable(archived(tmp_path / "messages", MESSAGES, "day=2030-01-31", "day=2030-02-01"), "")
    check_replayable("s3a://elsewhere/archive", "")
