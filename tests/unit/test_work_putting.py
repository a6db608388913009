"""Puts that come in the very turn in which the groups before them end are not forgotten."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capellini.model.clock import RealClock
from capellini.model.errors import Unavailable
from capellini.model.message import Entry, NewMessage
from capellini.model.service import Problem, Put
from capellini.node.broker import Broker
from capellini.queues.work import keyed, putting
from capellini.queues.work.block import check, pack
from capellini.queues.work.place import Gone
from capellini.store.rocks.store import RocksStore
from capellini.store.schema import TABLES

BLOCK = msgspec.msgpack.encode([[b"x"]])


async def test_a_put_as_all_groups_end_is_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("q")
    loop = asyncio.get_running_loop()
    held: asyncio.Future[None] = loop.create_future()
    really = putting.Putting._put_group

    async def put_group(self: putting.Putting, group: list[putting._Piece]) -> None:
        await really(self, group)
        if not held.done():
            await held

    monkeypatch.setattr(putting.Putting, "_put_group", put_group)
    for _ in range(putting.GROUPS_AT_ONCE):
        await broker.put_block("q", BLOCK)
    (queue,) = broker.open_queues.values()
    late = putting._Call(check(BLOCK, 1_000), loop.create_future())
    held.set_result(None)  # the groups go on in the next turn, and end; their tasks' callbacks come in the turn after
    loop.call_soon(lambda: queue.putting._queue(late.pieces[0]))
    async with asyncio.timeout(20):
        assert await late.answer == [(putting.GROUPS_AT_ONCE, 1)]
    await store.close()


async def test_a_move_that_knows_an_older_generation_does_not_trust_one_that_has_only_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("letters")
    before = broker.opened(await broker.catalog.live("letters"))
    first = await before.putting.reserve()
    await broker.purge("letters")
    after = broker.opened(await broker.catalog.live("letters"))

    async def dies(*_: object) -> bool:
        raise Unavailable("this node is stopping")

    entry, key = Entry(b"letter", origin="jobs/1/7"), "moved:jobs/1/7"
    with monkeypatch.context() as patched:
        patched.setattr(after.putting, "write_as", dies)  # its key is claimed, and nothing is written
        with pytest.raises(Unavailable):
            await broker.put_moved("letters", key, entry)

    async def reserved() -> tuple[int, float]:
        return first

    monkeypatch.setattr(before.putting, "reserve", reserved)
    with pytest.raises(Gone):
        await before.put_moved(key, pack([entry]))
    await broker.put_moved("letters", key, entry)  # so it is done in the generation that lives
    assert [each.body for each in await broker.peek("letters")] == [b"letter"]
    await broker.close()
    await store.close()


async def test_of_one_key_given_twice_in_a_call_the_first_is_the_message(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("jobs")
    items = [NewMessage(body, key=key) for body, key in ((b"a", "k"), (b"b", "k"), (b"c", "other"), (b"d", "k"))]
    results = await broker.put("jobs", items)
    assert [isinstance(each, Put) and each.duplicate for each in results] == [False, True, False, True]
    assert sorted(each.body for each in await broker.peek("jobs")) == [b"a", b"c"]
    await store.close()


async def test_of_a_crowd_of_moves_one_takes_ids_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("q")
    queue = broker.opened(await broker.catalog.live("q"))
    really = queue.place.monoton.change

    async def slow(*args: Any, **options: Any) -> Any:
        await asyncio.sleep(0.01)
        return await really(*args, **options)

    monkeypatch.setattr(queue.place.monoton, "change", slow)
    queue.putting._ahead_size = putting.AHEAD_MOST  # other nodes want ids, too
    first = (await queue.putting.reserve())[0]
    queue.putting._give_back()
    await asyncio.gather(*[queue.putting.reserve() for _ in range(50)])
    queue.putting._give_back()
    assert 50 < (await queue.putting.reserve())[0] - first < 4 * putting.AHEAD_MOST
    await broker.close()
    await store.close()


async def test_who_is_too_late_to_be_written_makes_nobody_else_late(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("q")
    named = broker.opened(await broker.catalog.live("q")).putting
    now_s = RealClock().elapsed_s()
    tries = [(await named.reserve())[0] for _ in range(3)]
    deadlines = (now_s + 30, now_s - 1, now_s + 30)
    block = check(BLOCK, 1_000)
    done = [named.write_as(id, block, until_s) for id, until_s in zip(tries, deadlines, strict=True)]
    assert await asyncio.gather(*done) == [True, False, True]
    assert len(await broker.peek("q")) == 2
    await broker.close()
    await store.close()


async def test_a_put_that_is_written_but_not_pinned_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("q")

    async def away(*_: object) -> bool:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(keyed, "_pinned", away)
        (answer,) = await broker.put("q", [NewMessage(b"m", key="k")])
    assert isinstance(answer, Problem) and answer.error == "unknown"
    assert len(await broker.peek("q")) == 1
    await broker.close()
    await store.close()
