"""On a disk that is nearly full messages can still be got and acked, and queues emptied: that is what makes room."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from pathlib import Path

import httpx
import pytest
from tests.unit.rocks_stores import PLAIN, opened, row

from capellini.api.server import Server
from capellini.model.clock import RealClock
from capellini.model.errors import CapelliniError, Full
from capellini.model.message import Delivery, NewMessage
from capellini.model.scheduling import TimedService
from capellini.model.service import Done, Problem, Put
from capellini.model.timed import MoveItem
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.timed import changing
from capellini.store import folder as folders
from capellini.store.interface import Batch, Slice
from capellini.store.rocks import RocksStore, upkeep

pytestmark = pytest.mark.slow

WAIT_S = 10.0
MB = 1024 * 1024
FREE = folders.ACK_ROOM_BYTES + 1


def with_room(node: Node, folder: Path, free_bytes: int) -> None:
    assert isinstance(node.store, RocksStore)
    node.store._room = folders.Room(folder, RealClock(), folders.ROOM_BYTES, lambda _: free_bytes)


async def got(node: Node, name: str, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count and (more := await node.service.get(name, count - len(found), WAIT_S)):
        found += more
    return found


async def refused_as(node: Node, name: str) -> str:
    try:
        (result,) = await node.service.put(name, [NewMessage(b"more")])
    except CapelliniError as error:
        return error.name
    return result.error if isinstance(result, Problem) else ""


@pytest.mark.parametrize("kind", ["work", "timed", "log"])
@pytest.mark.parametrize("began", [True, False], ids=["consumers_were_there", "nobody_got_before"])
async def test_gets_and_acks_go_on_when_puts_do_not(tmp_path: Path, kind: str, began: bool) -> None:
    node = await Node.open(Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0"))
    try:
        async with asyncio.timeout(60):
            await node.service.create("q", kind)
            results = await node.service.put("q", [NewMessage(b"%d" % at) for at in range(5)])
            assert all(isinstance(each, Put) for each in results)
            if began:
                assert len(await got(node, "q", 1)) == 1
            with_room(node, tmp_path, FREE)
            assert await refused_as(node, "q") == "full"
            rest = await got(node, "q", 4 if began else 5)
            answers = await node.service.ack("q", [one.receipt for one in rest])
            assert len(answers) >= 4 and all(isinstance(each, Done) for each in answers)
    finally:
        with_room(node, tmp_path, 1 << 40)
        await node.close()


async def test_queues_are_emptied_and_removed_on_a_full_disk_and_none_is_made(tmp_path: Path) -> None:
    node = await Node.open(Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0"))
    server = Server(node.service)
    node.subscribe(server.see)
    host, port = await server.listen("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}/v1/queues", timeout=60) as http:
        for kind in ("work", "timed", "log"):
            await http.put(f"/{kind}", json={"kind": kind})
            await http.post(f"/{kind}/messages", json={"messages": [{"body": "x"}]})
        with_room(node, tmp_path, FREE)
        await node.look()
        refused = await http.put("/more")
        assert (refused.status_code, refused.json()["error"]) == (503, "full")
        for kind in ("work", "timed", "log"):
            assert (await http.post(f"/{kind}/purge")).status_code == 200
            assert (await http.get(f"/{kind}/statistics")).json()["ready"] == 0
            assert (await http.delete(f"/{kind}")).status_code == 204
        async with asyncio.timeout(60):
            while await node.service._work.catalog._endings._leaving():
                await asyncio.sleep(0.1)
    await server.close(1.0)
    with_room(node, tmp_path, 1 << 40)
    await node.close()


def _timed(node: Node) -> TimedService:
    assert node.service.timed is not None
    return node.service.timed


async def _soon_and_later(node: Node) -> list[str]:
    """The ids of a message that is due, and of one that nobody reads yet."""
    await node.service.create("q", "timed")
    results = await node.service.put("q", [NewMessage(b"now"), NewMessage(b"later", delay_s=7_200)])
    return [each.id for each in results if isinstance(each, Put)]


async def _waiting(node: Node) -> dict[str, bytes]:
    return {each.id: each.body for each in await node.service.peek("q", 10)}


@pytest.mark.parametrize("anew", [False, True], ids=["the_same_node", "a_node_that_wrote_nothing_yet"])
async def test_timed_messages_are_cancelled_on_a_full_disk(tmp_path: Path, anew: bool) -> None:
    settings = Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0")
    node = await Node.open(settings)
    ids = await _soon_and_later(node)
    if anew:
        await node.close()
        node = await Node.open(settings)
    try:
        async with asyncio.timeout(30):
            while len(await _waiting(node)) < 2:
                await asyncio.sleep(0.02)
            with_room(node, tmp_path, folders.ACK_ROOM_BYTES - 1)
            (refused,) = await _timed(node).cancel("q", ids[1:])
            assert isinstance(refused, Problem) and refused.error == "full"
            with_room(node, tmp_path, FREE)
            answers = await _timed(node).cancel("q", ids)
            assert [type(each) for each in answers] == [Done, Done]
            assert await _waiting(node) == {}
    finally:
        with_room(node, tmp_path, 1 << 40)
        await node.close()


async def test_a_move_is_refused_on_a_full_disk_before_anything_is_begun(tmp_path: Path) -> None:
    """It writes the message anew, as a put does."""
    node = await Node.open(Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0"))
    try:
        async with asyncio.timeout(30):
            ids = await _soon_and_later(node)
            while len(await _waiting(node)) < 2:
                await asyncio.sleep(0.02)
            with_room(node, tmp_path, FREE)
            due_ms = int((time.time() + 3_600) * 1000)
            answers = await _timed(node).move("q", [MoveItem(id, due_ms) for id in ids])
            assert [each.error for each in answers if isinstance(each, Problem)] == ["full", "full"]
            (soon,) = await got(node, "q", 1)
            assert soon.body == b"now"
            assert all(isinstance(each, Done) for each in await node.service.ack("q", [soon.receipt]))
            with_room(node, tmp_path, 1 << 40)
            (moved,) = await _timed(node).move("q", [MoveItem(ids[1], due_ms)])
            assert isinstance(moved, Done) and await _waiting(node) == {ids[1]: b"later"}
    finally:
        with_room(node, tmp_path, 1 << 40)
        await node.close()


async def test_a_move_that_was_begun_is_finished_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds the shard next hands out nothing before it is."""
    settings = Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0")
    node = await Node.open(settings)
    begun = asyncio.Event()

    async def never(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    ids = await _soon_and_later(node)
    await node.service.put("q", [NewMessage(b"another")])
    while len(await _waiting(node)) < 3:
        await asyncio.sleep(0.02)
    with monkeypatch.context() as patch:
        patch.setattr(changing, "note_move", never)  # it dies here
        move = asyncio.create_task(_timed(node).move("q", [MoveItem(ids[0], int((time.time() + 3_600) * 1000))]))
        await begun.wait()
        move.cancel()
        await node.close()
    node = await Node.open(settings)
    with_room(node, tmp_path, FREE)
    try:
        async with asyncio.timeout(30):
            assert [each.body for each in await got(node, "q", 1)] == [b"another"]
            assert sorted((await _waiting(node)).values()) == [b"another", b"later", b"now"]
    finally:
        with_room(node, tmp_path, 1 << 40)
        await node.close()


async def test_a_reason_is_logged_when_it_comes_and_not_when_its_numbers_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = await Node.open(Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0"))
    try:
        with caplog.at_level("INFO", "capellini.node"):
            for free_bytes in (FREE, FREE + 4_096, FREE + 8_192, 1 << 40):
                with_room(node, tmp_path, free_bytes)
                await node.look()
        said = [each.getMessage().partition(":")[0] for each in caplog.records if "ready" in each.getMessage()]
        assert said == ["not ready", "ready"]
    finally:
        await node.close()


def tables_bytes(folder: Path) -> int:
    size = 0
    for each in (folder / folders.DATA_FOLDER).glob("*.sst"):
        with contextlib.suppress(FileNotFoundError):  # RocksDB was faster
            size += each.stat().st_size
    return size


async def put_megabytes(store: RocksStore, count: int) -> None:
    body = random.Random(7).randbytes(MB)
    for number in range(count):
        salted = number.to_bytes(2, "big") + body[number:] + body[:number]
        await store.write(Batch(PLAIN, (f"p{number % 4}",), (row(number, salted),)))


async def test_less_waits_in_memory_while_a_disk_fills_up(tmp_path: Path) -> None:
    """What waits there needs room when its time comes."""
    store = await opened(tmp_path / "s")
    await put_megabytes(store, 40)
    await asyncio.sleep(0.2)
    assert tables_bytes(tmp_path / "s") == 0
    store._room = folders.Room(tmp_path, RealClock(), folders.ROOM_BYTES, lambda _: folders.AMPLE_BYTES - 1)
    async with asyncio.timeout(30):
        while tables_bytes(tmp_path / "s") < 40 * MB:
            await store.write(Batch(PLAIN, ("more",), (row(1),)))
            await asyncio.sleep(0.02)
        await put_megabytes(store, 40)
        while tables_bytes(tmp_path / "s") < 56 * MB:
            await asyncio.sleep(0.02)
    await store.close()


async def test_little_waits_in_memory_where_a_disk_was_nearly_full_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "free_bytes", lambda _: folders.AMPLE_BYTES - 1)
    store = await opened(tmp_path / "s")
    await put_megabytes(store, 40)
    async with asyncio.timeout(30):
        while tables_bytes(tmp_path / "s") < 16 * MB:
            await asyncio.sleep(0.02)
    await store.close()


async def test_what_is_dropped_on_a_full_disk_gives_its_room_back_though_nothing_more_is_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "AMPLE_BYTES", 1 << 62)
    store = await opened(tmp_path / "s")
    await put_megabytes(store, 40)
    async with asyncio.timeout(30):
        while tables_bytes(tmp_path / "s") < 20 * MB:  # RocksDB writes its tables in the background
            await asyncio.sleep(0.02)
        store._room = folders.Room(tmp_path, RealClock(), folders.ROOM_BYTES, lambda _: FREE)
        for number in range(4):
            await store.drop(PLAIN, (f"p{number}",))
        while tables_bytes(tmp_path / "s") > MB:
            await store.sweep(10)
            await store.write(Batch(PLAIN, ("beat",), (row(1),), frees=True))
    await store.close()


async def test_what_is_dropped_gives_its_room_back_on_any_disk_once_it_is_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(folders, "AMPLE_BYTES", 1 << 62)  # so that there are files
        store = await opened(tmp_path / "s")
    await put_megabytes(store, 40)
    kept = (await store.read(Slice(PLAIN, ("p3",), limit=100))).rows
    for number in range(3):
        await store.drop(PLAIN, (f"p{number}",))
    await store.sweep(10)
    await store._garbage.ended()
    assert tables_bytes(tmp_path / "s") > 20 * MB  # little is left to RocksDB
    monkeypatch.setattr(upkeep, "LITTLE_BYTES", 20 * MB)
    await store.sweep(10)
    await store._garbage.ended()
    assert tables_bytes(tmp_path / "s") < 13 * MB
    assert (await store.read(Slice(PLAIN, ("p3",), limit=100))).rows == kept
    await store.drop(PLAIN, ("p3",))
    await store.sweep(10)
    await store._garbage.ended()
    assert tables_bytes(tmp_path / "s") > 9 * MB  # not again so soon
    with_no_room = folders.Room(tmp_path, RealClock(), folders.ROOM_BYTES, lambda _: 0)
    monkeypatch.setattr(store, "_room", with_no_room)
    with pytest.raises(Full):
        await store.sweep(10)
    await store._garbage.ended()
    assert tables_bytes(tmp_path / "s") < MB
    await store.close()


async def test_a_store_is_closed_and_opened_again_though_room_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path / "s")
    await put_megabytes(store, 4)
    hurried, hangs = threading.Event(), store._database.hurry
    monkeypatch.setattr(upkeep, "CLOSING_S", 0.1)
    monkeypatch.setattr(store._database, "compact", lambda low, high: hurried.wait(30))
    monkeypatch.setattr(store._database, "hurry", lambda: (hangs(), hurried.set()))
    await store.drop(PLAIN, ("p1",))
    with_no_room = folders.Room(tmp_path, RealClock(), folders.ROOM_BYTES, lambda _: 0)
    store._garbage.clear(with_no_room)
    await store.close()
    assert hurried.is_set()
    again = await opened(tmp_path / "s")
    assert [bool((await again.read(Slice(PLAIN, (f"p{number}",), limit=9))).rows) for number in range(4)] == [
        True, False, True, True
    ]  # fmt: skip
    await again.close()
