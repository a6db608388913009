"""The benchmark of timed queues measures what it says: on small runs, on a folder."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from capellini.bench import figures, timed, timed_backlog
from capellini.bench.timed_late import Lateness, in_process, lateness, worked
from capellini.node.node import Node
from capellini.node.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    opened = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}"))
    await opened.service.create("later", "timed", {"shards": 2})
    await worked(opened.service.timed, "later")
    yield opened
    await opened.close()


async def test_all_messages_are_measured_and_none_is_early(node: Node) -> None:
    found = await lateness(in_process(node.service, "later"), per_s=300.0, seconds=1.0, lead_s=0.3)
    assert (len(found.late_ms), found.early) == (300, 0)
    assert found.late_ms == sorted(found.late_ms)
    assert found.detail()["messages"] == 300
    assert (await node.service.statistics("later")).acks == 300


def test_quantiles_are_of_the_sorted_samples() -> None:
    found = Lateness([float(each) for each in range(100)], 0, 1.0)
    assert (found.quantile(0.5), found.quantile(0.99), found.quantile(1.0)) == (50.0, 99.0, 99.0)


async def test_the_backlog_lies_over_the_next_year(node: Node) -> None:
    await timed_backlog._fill(node, 2_000)
    now_ms = int(time.time() * 1000)
    assert node.service.timed is not None
    soon = await node.service.timed.due_between("later", 0, now_ms + 3_600_000, 10)
    assert soon == []
    later = await node.service.timed.due_between("later", now_ms, now_ms + 400 * 86_400_000, 1_000)
    assert len(later) == 1_000
    assert await timed_backlog._puts(node, 1) > 0


def test_every_figure_has_its_part() -> None:
    prefixes = [prefix for each in timed.PARTS.values() for prefix in each]
    for name in figures.names("timed"):
        assert sum(name.startswith(prefix) for prefix in prefixes) == 1, name
