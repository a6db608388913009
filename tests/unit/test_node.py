"""A node on a real folder: ready, draining, full, skewed; and `serve` from start to stop."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

import pytest

import capellini
from capellini.api.serving import serve
from capellini.model.errors import Full, InUse, Unavailable
from capellini.model.message import NewMessage
from capellini.model.service import Put
from capellini.node.condition import Condition
from capellini.node.node import Node, examine
from capellini.node.settings import Settings
from capellini.store.rocks import RocksStore
from capellini.store.worker import SyncWorker

PATIENCE_S = 20.0


def settings(tmp_path: Path, **more: str) -> Settings:
    return Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0", **more)


async def test_a_node_is_ready_serves_and_gives_its_folder_back(tmp_path: Path) -> None:
    node = await Node.open(settings(tmp_path, events=f"file:{tmp_path}/events"))
    seen: list[Condition] = []
    node.subscribe(seen.append)
    await node.service.create("q")
    assert isinstance((await node.service.put("q", [NewMessage(b"x")]))[0], Put)
    with pytest.raises(InUse):
        await Node.open(settings(tmp_path))
    await node.drain()
    await node.drain(False)
    assert [each.draining for each in seen] == [False, True, False]
    assert seen[0].ready
    assert seen[1].reasons == ["the node is draining"]
    await node.close()
    assert (tmp_path / "events").stat().st_size > 0
    again = await Node.open(settings(tmp_path))
    assert [each.name for each in await again.service.queues()] == ["q"]
    await again.close()


async def test_a_drain_that_comes_while_the_store_is_asked_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await Node.open(settings(tmp_path, events="none"), begin=False)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        asked.set()
        await answer.wait()

    monkeypatch.setattr(node.store, "check", slowly)
    looking = asyncio.create_task(node.look())
    await asked.wait()
    await node.drain()
    answer.set()
    await looking
    assert node.condition.draining
    await node.close()


async def test_events_that_a_file_does_not_take_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = await Node.open(settings(tmp_path, events="file:/dev/full"), begin=False)
    await node.service.create("q")
    for _ in range(3):
        await node.service.put("q", [NewMessage(b"x")])
        node.flush_events()
    assert caplog.text.count("file:/dev/full takes no events: 1 were lost") == 1
    assert caplog.text.count("takes no events") == 1
    await node.close()


async def test_the_rate_of_puts_is_of_what_was_put(tmp_path: Path) -> None:
    node = await Node.open(settings(tmp_path, events="none"), begin=False)
    await node.service.create("q", options={"body_limit": 1})
    await node.service.put("q", [NewMessage(b"too large")])
    assert (await node.service.statistics("q")).puts_per_s == 0.0
    await node.service.put("q", [NewMessage(b"x"), NewMessage(b"too large")])
    assert (await node.service.statistics("q")).puts_per_s == 1.0
    await node.close()


class Ill(RocksStore):
    """A real store whose check says what it is told to."""

    ails: Exception | None = None
    skew = 0.0

    async def check(self) -> None:
        if self.ails is not None:
            raise self.ails
        await super().check()

    async def skew_s(self) -> float:
        return self.skew


async def test_the_condition_follows_the_store(tmp_path: Path) -> None:
    from capellini.model.clock import RealClock

    store = await Ill.open(tmp_path / "data", create=True, clock=RealClock())
    assert isinstance(store, Ill)
    try:
        assert (await examine(store, 0.5, False)).ready
        store.ails = Full("the disk is full")
        assert (await examine(store, 0.5, False)).full == "the disk is full"
        store.ails = Unavailable("the store is away")
        found = await examine(store, 0.5, True)
        assert (found.down, found.draining, found.ready) == ("the store is away", True, False)
        store.ails, store.skew = None, -0.6
        found = await examine(store, 0.5, False)
        assert "clock" in (found.skewed or "")
        assert (found.ready, found.skew_s) == (False, -0.6)
    finally:
        await store.close()


async def test_serve_runs_until_it_is_told_to_stop(tmp_path: Path) -> None:
    stop, told = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(settings(tmp_path, node="n1"), told.set_result, lambda folder: folder / "s", stop))
    async with asyncio.timeout(PATIENCE_S):
        addresses = await told
        assert addresses[1] == f"unix:{tmp_path}/data/s"
        answer = await asyncio.to_thread(_read, f"{addresses[0]}/health")
        assert json.loads(answer) == {"status": "ok", "node": "n1"}
        assert b"capellini_store_writes_total" in await asyncio.to_thread(_read, f"{addresses[0]}/metrics")
        stop.set()
        await task
    assert not (tmp_path / "data" / "s").exists()


@pytest.mark.slow
async def test_a_node_whose_disk_fails_ends_and_what_was_confirmed_is_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(settings(tmp_path), told.set_result))
    async with asyncio.timeout(PATIENCE_S), capellini.connect_async((await told)[0], patience_s=0) as client:
        await client.create_queue("jobs")
        await client.put("jobs", b"confirmed")
        with monkeypatch.context() as disk:
            disk.setattr(SyncWorker, "_timed_flush", lambda *_: OSError("the disk is gone"))
            with pytest.raises(capellini.Unknown):
                await client.put("jobs", b"perhaps")
            with pytest.raises(Unavailable, match=r"the disk is gone.* on the disk"):
                await task
    async with asyncio.timeout(PATIENCE_S), capellini.connect_async(f"rocks:{tmp_path / 'data'}") as client:
        assert (await client.get("jobs"))[0].body == b"confirmed"


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
        found: bytes = response.read()
        return found
