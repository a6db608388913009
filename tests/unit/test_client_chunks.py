"""Plain calls of a client on a log queue travel as chunks and ranges, and mean what they mean on every queue."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

import capellini
from capellini.client.aio import AsyncClient
from capellini.client.batches import PulledOrigin
from capellini.model.errors import Stale, Unavailable, WrongKind
from capellini.model.message import Delivery, NewMessage
from capellini.model.service import Done, Problem, Put, QueueInfo
from capellini.queues.log.receipts import parse


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient[bytes]]:
    async with capellini.connect_async(f"rocks:{tmp_path}") as client:
        await client.create_queue("feed", "log")
        yield client


def no_plain_calls(client: AsyncClient[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    async def put(name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        raise AssertionError("an object for each message")

    async def get(name: str, count: int, wait_s: float, visibility_s: float | None) -> list[Delivery]:
        raise AssertionError("an object for each message")

    monkeypatch.setattr(client._service, "put", put)
    monkeypatch.setattr(client._service, "get", get)


async def test_messages_are_put_got_and_acked_without_an_object_for_each_on_the_way(
    client: AsyncClient[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_plain_calls(client, monkeypatch)
    put = await client.put_many("feed", [b"%d" % number for number in range(10)])
    await client.put("feed", b"last", attributes={"to": "all"})
    found = await client.get("feed", 100)
    assert [message.body for message in found] == [*(b"%d" % number for number in range(10)), b"last"]
    assert [message.id for message in found[:10]] == [each.id for each in put if isinstance(each, Put)]
    assert found[-1].attributes == {"to": "all"} and found[0].attributes == {}
    assert all(type(message._origin) is PulledOrigin for message in found)
    assert await client.ack_many("feed", found) == [Done()] * 11
    again = await client.ack_many("feed", found[3:5])
    assert [isinstance(each, Problem) and each.error for each in again] == ["stale", "stale"]
    assert await client.get("feed") == []


async def test_a_queue_of_unknown_kind_is_put_to_and_got_from_though_nobody_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the smaller side of a cut between data centres."""

    async def cut_off(name: str) -> QueueInfo:
        raise Unavailable("no majority")

    async with capellini.connect_async(f"rocks:{tmp_path}", patience_s=0.0) as client:
        await client._service.create("feed", "log")
        await client._service.create("jobs", "work")
        monkeypatch.setattr(client._service, "show", cut_off)
        no_plain_calls(client, monkeypatch)
        await client.put("feed", b"x")
        await client.put("feed", b"y")
        assert [message.body for message in await client.get("feed", 2)] == [b"x", b"y"]
        with pytest.raises(WrongKind):
            await client.get("jobs@group")


async def test_any_process_may_settle_by_receipt_until_the_queue_is_purged(client: AsyncClient[bytes]) -> None:
    await client.put_many("feed", [b"a", b"b", b"c", b"d"])
    found = await client.get("feed", 4)
    texts = [message.receipt for message in found]
    assert await client.ack_many("feed", [texts[0], found[1], texts[0]]) == [
        Done(),
        Done(),
        Problem("stale", "the receipt is of an earlier delivery, or the message is gone"),
    ]
    await client.nack("feed", texts[2], 0.0)
    await found[3].extend(60.0)
    assert [(message.body, message.deliveries) for message in await client.get("feed", 4)] == [(b"c", 2)]
    await client.purge_queue("feed")
    for late in (found[3], texts[3]):
        with pytest.raises(Stale):
            await client.ack("feed", late)
    with pytest.raises(Stale):
        await found[3].nack()


async def test_an_ack_names_what_was_not_in_flight_any_more(client: AsyncClient[bytes]) -> None:
    await client.put_many("feed", [b"a", b"b", b"c"])
    found = await client.get("feed", 3)
    await found[1].ack()
    results = await client.ack_many("feed", found)
    assert [getattr(each, "error", "") for each in results] == ["", "stale", ""]


async def test_what_is_wrong_or_delayed_is_so_for_itself_alone(client: AsyncClient[bytes]) -> None:
    await client.change_queue("feed", body_limit=100)
    results = await client.put_many("feed", [b"short", b"x" * 101, b"last"])
    assert [getattr(each, "error", "") for each in results] == ["", "too_large", ""]
    bad: dict[str, str] = {"n": 1}  # type: ignore[dict-item]
    results = await client.put_many("feed", [NewMessage(b"good"), NewMessage(b"bad", bad)])
    assert [getattr(each, "error", "") for each in results] == ["", "invalid"]
    await client.put("feed", b"later", delay_s=3_600.0)
    assert sorted(message.body for message in await client.get("feed", 10)) == [b"good", b"last", b"short"]
    large = b"x" * 100
    assert all(isinstance(each, Put) for each in await client.put_many("feed", [large] * 20_000))  # in several chunks
    assert len(await client.get("feed", 10_000)) == 10_000


@pytest.mark.parametrize("field", ["epoch", "delivery"])
async def test_a_receipt_with_numbers_that_no_delivery_has_is_refused_by_itself(
    client: AsyncClient[bytes], field: str
) -> None:
    await client.put_many("feed", [b"a", b"b"])
    one, other = await client.get("feed", 2)
    altered = msgspec.structs.replace(parse(one.receipt), **{field: 1 << 63})
    text = urlsafe_b64encode(msgspec.msgpack.encode(altered)).rstrip(b"=").decode()
    results = await client.ack_many("feed", [text, other.receipt])
    assert [getattr(each, "error", "") for each in results] == ["stale", ""]
    item = msgspec.structs.replace(one._origin.settles("ack", None), **{field: 1 << 63})
    (settled,) = await client._log.settle("feed", "default", [item])
    assert (settled.ranges, settled.error) == ([], "invalid")
    await one.ack()


@pytest.mark.parametrize("known", [True, False])
async def test_what_is_delivered_of_an_ordered_queue_is_not_dealt_out_to_several_tasks(
    client: AsyncClient[bytes], known: bool
) -> None:
    """Gets of one turn share a request, where that does no harm."""
    await client._service.create("moves", "log", {"mode": "cp", "ordered": "total"})
    if known:
        await client.show_queue("moves")
    await client._service.put("moves", [NewMessage(b"%d" % number) for number in range(10)])
    found = await asyncio.gather(*[client.get("moves", 5) for _ in range(3)])
    assert sorted(len(some) for some in found) == [0, 0, 5]
