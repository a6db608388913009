"""How tasks read: what a Python worker of Spark keeps from one task to the next, and for how long."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.ways import usable

from capellini.model.clock import RealClock
from capellini.pipeline.source.ways import Kept, Way, way_to
from capellini.pipeline.source.worker import settle
from capellini.store.rocks import RocksStore
from capellini.store.schema import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
FOREVER_S = 3_600.0
DEADLINE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> str:
    async def make() -> None:
        store = await RocksStore.open(tmp_path / "store", clock=RealClock())
        await store.prepare(TABLES)
        await store.close()

    asyncio.run(make())
    return f"rocks:{tmp_path / 'store'}"


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept(FOREVER_S)
    yield made
    if (left := made.take(("", None))) is not None:
        left.close()


def test_a_kept_way_is_taken_once(folder: str, kept: Kept) -> None:
    way = Way(folder, None)
    kept.put(way)
    assert kept.take((folder, None)) is way and usable(way)
    assert kept.take((folder, None)) is None
    way.close()
    assert not usable(way)


def test_a_way_that_leads_elsewhere_is_closed(folder: str, kept: Kept) -> None:
    way = Way(folder, None)
    kept.put(way)
    assert kept.take((folder, 5.0)) is None
    assert not usable(way)


def test_a_way_that_nobody_takes_is_closed_soon(folder: str) -> None:
    kept, way = Kept(0.01), Way(folder, None)
    kept.put(way)
    deadline_s = time.monotonic() + DEADLINE_S
    while usable(way):
        assert time.monotonic() < deadline_s
    assert kept.take((folder, None)) is None


def test_a_folder_is_opened_by_each_task(folder: str, kept: Kept) -> None:
    with way_to(folder, None, kept) as way:
        assert usable(way)
    assert not usable(way) and kept.take((folder, None)) is None


def test_a_worker_does_not_look_through_what_is_imported_after_each_task(spark: SparkSession) -> None:
    def left_out(_: int) -> int:
        settle()
        return gc.get_freeze_count()

    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() == before  # this is no worker
    assert spark.sparkContext.parallelize([0], 1).map(left_out).first() > 10_000
