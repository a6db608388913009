"""Groups, routes, extents and chunks of log queues over HTTP, to a real node on a folder."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

import capellini
from capellini.api.pumping import given_back, settle_of
from capellini.api.server import Server
from capellini.api.wire import MAX_NAME_CHARS
from capellini.model.chunks import bodies_of, head_of, pack
from capellini.model.errors import Conflict, Invalid, NotFound, WrongKind
from capellini.model.log import DEFAULT_GROUP
from capellini.model.streams import MAX_SETTLES
from capellini.node.node import Node
from capellini.node.settings import Settings

DEADLINE_S = 30.0
PACKED = {"content-type": "application/msgpack"}


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0"))
    server = Server(node.service, drain=node.drain, peer=node.serve_peer)
    host, port = await server.listen("127.0.0.1", 0)
    async with asyncio.timeout(DEADLINE_S):
        yield f"http://{host}:{port}"
    await server.close(1.0)
    await node.close()


@pytest.fixture
async def client(address: str) -> AsyncIterator[capellini.AsyncClient[bytes]]:
    async with capellini.connect_async(address) as made:
        await made.create_queue("feed", "log")
        yield made


async def test_a_group_is_made_shown_changed_and_deleted(client: capellini.AsyncClient[bytes]) -> None:
    made = await client.groups.create("feed", "billing", visibility_s=60)
    assert (made.queue, made.name, made.options.visibility_s, made.start_at) == ("feed", "billing", 60, 0)
    assert (await client.groups.create("feed", "billing", visibility_s=60)).version == made.version
    with pytest.raises(Conflict):
        await client.groups.create("feed", "billing", visibility_s=61)
    await client.put_many("feed", [b"a", b"b", b"c"])
    assert len(await client.get("feed", group="billing", wait_s=5)) == 1
    info, lag = await client.groups.show("feed", "billing")
    assert (info, lag.ready, lag.in_flight, lag.exact) == (made, 2, 1, True)
    changed = await client.groups.change("feed", "billing", delivery_limit=3)
    assert (changed.options.visibility_s, changed.options.delivery_limit) == (60, 3)
    assert [each.name for each in await client.groups.list("feed")] == ["billing"]
    await client.groups.delete("feed", "billing")
    with pytest.raises(NotFound):
        await client.groups.show("feed", "billing")


async def test_a_group_goes_back_and_ahead(client: capellini.AsyncClient[bytes]) -> None:
    await client.groups.create("feed", "billing")
    await client.put_many("feed", [b"a", b"b"])
    (first,) = await client.get("feed", group="billing", wait_s=5)
    sought = await client.groups.seek("feed", "billing", 1.0)
    assert "not kept" in sought.says
    with pytest.raises(capellini.Stale):
        await first.ack()
    assert [each.body for each in await client.get("feed", 10, group="billing", wait_s=5)] == [b"a", b"b"]
    await client.groups.seek("feed", "billing", "latest")
    assert await client.get("feed", 10, group="billing") == []


async def test_dead_letters_of_a_group_come_back_or_go(client: capellini.AsyncClient[bytes]) -> None:
    await client.groups.create("feed", "billing", delivery_limit=1)
    await client.put_many("feed", [b"a", b"b"])
    for _ in range(2):
        (message,) = await client.get("feed", group="billing", wait_s=5)
        await message.nack()
    async with asyncio.timeout(DEADLINE_S):
        while len(await client.dead("feed@billing")) < 2:
            await asyncio.sleep(0.02)
    moved: list[int] = []
    assert await client.groups.merge_dead("feed", "billing", 1, progress=moved.append) == sum(moved) == 1
    assert len(await client.get("feed", 10, group="billing", wait_s=5)) == 1
    await client.groups.purge_dead("feed", "billing")
    assert await client.dead("feed@billing") == []


async def test_chunks_go_in_and_out_by_calls(client: capellini.AsyncClient[bytes]) -> None:
    log = client._log
    done = await log.append("feed", pack([b"a", b"b", b"c"], None, b"p" * 16, 1))
    assert (done.first, done.count, done.duplicate) == (0, 3, False)
    assert (await log.append("feed", pack([b"a", b"b", b"c"], None, b"p" * 16, 1))).duplicate
    (parcel,) = await log.pull("feed", DEFAULT_GROUP, 10, 1 << 20, 5.0)
    assert bodies_of(parcel.chunks, head_of(parcel.chunks)) == [b"a", b"b", b"c"]
    (acked, again) = await log.settle(
        "feed", DEFAULT_GROUP, [settle_of(parcel, "ack", [(0, 2)]), settle_of(parcel, "ack", [(1, 1)])]
    )
    assert (acked.ranges, again.ranges, again.error) == ([(0, 2)], [], "")
    await log.settle("feed", DEFAULT_GROUP, [given_back(parcel)])
    (parcel,) = await log.pull("feed", DEFAULT_GROUP, 10, 1 << 20, 5.0)
    assert (parcel.first, parcel.count, parcel.deliveries) == (2, 1, 1)  # nobody had seen it


async def test_who_writes_and_reads_is_told(client: capellini.AsyncClient[bytes]) -> None:
    await client.put("feed", b"a")
    assert len(await client.get("feed", wait_s=5)) == 1
    routes = await client.routes("feed", DEFAULT_GROUP)
    assert routes.here in routes.writers and routes.here in routes.readers
    (extent,) = await client.extents("feed")
    assert (extent.state, extent.end, extent.readers[DEFAULT_GROUP]["in_flight"]) == ("open", 1, 1)


async def test_the_same_without_asyncio(address: str) -> None:
    def work() -> None:
        with capellini.connect(address) as client:
            client.create_queue("feed", "log")
            client.groups.create("feed", "billing", visibility_s=60)
            client.put("feed", b"a")
            (message,) = client.get("feed", group="billing", wait_s=5)
            message.ack()
            assert client.groups.change("feed", "billing", visibility_s=30).options.visibility_s == 30
            client.groups.seek("feed", "billing", "earliest")
            assert client.groups.show("feed", "billing")[1].ready == 1
            assert [each.name for each in client.groups.list("feed")] == ["billing"]
            with pytest.raises(NotFound):
                client.groups.merge_dead("feed", "billing")
            client.groups.delete("feed", "billing")
            with pytest.raises(NotFound):
                client.groups.purge_dead("feed", "billing")

    await asyncio.to_thread(work)


async def test_what_is_wrong_with_groups_is_said(client: capellini.AsyncClient[bytes]) -> None:
    await client.create_queue("jobs")
    for queue, group, options, error in (
        ("nothing", "billing", {}, NotFound),
        ("jobs", "billing", {}, WrongKind),
        ("feed", "billing", {"speed": 1}, Invalid),
        ("feed", "billing", {"visibility_s": -1}, Invalid),
        ("feed", "billing", {"start": "whenever"}, Invalid),
        ("feed", "not a name", {}, Invalid),
        ("feed@billing", "billing", {}, NotFound),
    ):
        with pytest.raises(error):
            await client.groups.create(queue, group, **options)
    for call in (client.groups.show, client.groups.delete, client.groups.merge_dead, client.groups.purge_dead):
        with pytest.raises(NotFound):
            await call("feed", "nobody")
    with pytest.raises(NotFound):
        await client.groups.seek("feed", "nobody", "earliest")
    assert await client.groups.list("feed") == []


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("chunks/put", pack([b"x"]), {"content-type": "application/json"}, 415),
        ("chunks/put", b"", PACKED, 400),
        ("chunks/put", pack([b"x"])[:-1], PACKED, 400),
        ("groups/default/chunks/get", msgspec.msgpack.encode([0]), PACKED, 400),
        ("groups/default/chunks/get", msgspec.msgpack.encode([1, 1 << 40]), PACKED, 400),
        ("groups/default/chunks/get", msgspec.msgpack.encode([1, 1, -1]), PACKED, 400),
        ("groups/nobody/chunks/get", msgspec.msgpack.encode([1]), PACKED, 404),
        ("groups/default/chunks/settle", msgspec.msgpack.encode([["x"]]), PACKED, 400),
        ("groups/default/chunks/settle", msgspec.msgpack.encode([[]] * (MAX_SETTLES + 1)), PACKED, 400),
        ("groups/nobody/chunks/settle", msgspec.msgpack.encode([]), PACKED, 404),
    ],
    ids=itertools.count(),
)
async def test_bad_calls_change_nothing(
    client: capellini.AsyncClient[bytes], address: str, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=DEADLINE_S) as http:
        answer = await http.post(f"/v1/queues/feed/{path}", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert await client.get("feed") == []


async def test_the_longest_names_make_ids_and_receipts_that_are_taken_again(tmp_path: Path) -> None:
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0", node="n" * 100))
    server = Server(node.service)
    host, port = await server.listen("127.0.0.1", 0)
    group = "g" * (MAX_NAME_CHARS - len("feed..dead"))
    place = f"/v1/queues/feed@{group}/messages"
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=DEADLINE_S) as http:
        await http.put("/v1/queues/feed", json={"kind": "log"})
        await http.put(f"/v1/queues/feed/groups/{group}", json={})
        await http.post("/v1/queues/feed/messages", json={"messages": [{"body": "one"}, {"body": "two"}]})
        got = (await http.post(f"{place}/get", json={"count": 1, "wait_s": 10})).json()["messages"][0]
        rest = await http.get(place, params={"after": got["id"]})
        assert [each["body"] for each in rest.json()["messages"]] == ["two"]
        for verb, asked in (
            ("extend", {"items": [{"receipt": got["receipt"], "visibility_s": 60}]}),
            ("ack", {"receipts": [got["receipt"]]}),
        ):
            (result,) = (await http.post(f"{place}/{verb}", json=asked)).json()["results"]
            assert "error" not in result, result
    await server.close(1.0)
    await node.close()
