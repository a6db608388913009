"""A log queue in a folder is planned when it is looked up, and anew only if the folder changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import pytest

from capellini import connect
from capellini.pipeline.source.data import Capellini
from capellini.pipeline.source.log_source import LogReader, Task
from capellini.store.rocks import RocksStore

pytestmark = pytest.mark.spark

QUEUE: Final = "q"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "store"
    with connect(f"rocks:{found}") as client:
        client.create_queue(QUEUE, "log")
        client.put_many(QUEUE, [b"a"] * 10)
    return found


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders that were opened for reading."""
    found: list[Path] = []
    opened = RocksStore.open_secondary

    async def noted(folder: Path, *rest: Any, **more: Any) -> RocksStore:
        found.append(folder)
        return await opened(folder, *rest, **more)

    monkeypatch.setattr(RocksStore, "open_secondary", noted)
    return found


def looked_up(folder: Path, **options: str) -> LogReader:
    source = Capellini({"at": f"rocks:{folder}", "queue": QUEUE, **options})
    source.schema()
    return cast(LogReader, source.reader(cast(Any, None)))


def rows(reader: LogReader) -> int:
    return sum(each.rows for task in reader.partitions() for each in cast(Task, task).ranges)


def test_a_folder_that_did_not_change_is_opened_once(folder: Path, openings: list[Path]) -> None:
    reader = looked_up(folder)
    assert rows(reader) == 10
    assert openings == [folder]


def test_what_was_put_since_it_was_looked_up_is_read(folder: Path, openings: list[Path]) -> None:
    reader = looked_up(folder)
    with connect(f"rocks:{folder}") as client:
        client.put_many(QUEUE, [b"b"] * 5)
    assert rows(reader) == 15
    assert openings == [folder, folder]


def test_a_filter_that_narrows_what_is_read_is_planned_anew(folder: Path, openings: list[Path]) -> None:
    reader = looked_up(folder)
    reader._asked = looked_up(folder, until="1")._asked
    assert rows(reader) == 0
    assert openings == [folder, folder, folder]
