"""A real node's streams, spoken by hand from docs/protocol.md: a WebSocket library, `struct` and MessagePack, and
nothing of ours. What works here can be written in any language."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect

from capellini.api.server import Server
from capellini.node.node import Node
from capellini.node.settings import Settings

DEADLINE_S = 30.0
HEADER = struct.Struct("<BBHIII16sQ")
encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode


def chunk(
    bodies: list[bytes],
    attributes: list[dict[str, str]] | None = None,
    producer: bytes = bytes(16),
    sequence: int = 0,
) -> bytes:
    def ends(values: list[bytes]) -> bytes:
        at, found = 0, [0]
        for value in values:
            at += len(value)
            found.append(at)
        return struct.pack(f"<{len(found)}i", *found)

    rest = ends(bodies)
    if attributes is None:
        rest += b"".join(bodies)
    else:
        maps = [encode(one) if one else b"" for one in attributes]
        rest += ends(maps) + b"".join(bodies) + b"".join(maps)
    flags = 0 if attributes is None else 1
    return HEADER.pack(0xC4, 1, flags, len(bodies), HEADER.size + len(rest), 0, producer, sequence) + rest


def read_chunks(data: bytes) -> list[tuple[bytes, dict[str, str]]]:
    """Body and attributes of each message of one chunk after the other."""
    found: list[tuple[bytes, dict[str, str]]] = []
    while data:
        magic, version, flags, count, size, zero, _, _ = HEADER.unpack_from(data)
        assert (magic, version, zero) == (0xC4, 1, 0)
        at = HEADER.size
        ends = struct.unpack_from(f"<{count + 1}i", data, at)
        at += 4 * (count + 1)
        marks = (0,) * (count + 1)
        if flags & 1:
            marks = struct.unpack_from(f"<{count + 1}i", data, at)
            at += 4 * (count + 1)
        behind = at + ends[-1] - ends[0]
        for n in range(count):
            body = data[at + ends[n] - ends[0] : at + ends[n + 1] - ends[0]]
            packed = data[behind + marks[n] - marks[0] : behind + marks[n + 1] - marks[0]]
            found.append((body, decode(packed) if packed else {}))
        data = data[size:]
    return found


async def told(socket: ClientConnection) -> list[Any]:
    async with asyncio.timeout(DEADLINE_S):
        frame: list[Any] = decode(await socket.recv(decode=False))
    return frame


async def tell(socket: ClientConnection, *frame: Any) -> None:
    await socket.send(encode(frame))


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0"))
    server = Server(node.service, drain=node.drain, peer=node.serve_peer)
    host, port = await server.listen("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=DEADLINE_S) as http:
        for path, content in (("", {"kind": "log"}), ("/groups/readers", {}), ("/groups/others", {})):
            made = await http.put(f"/v1/queues/events{path}", json=content)
            assert made.status_code == 200, made.text
        made = await http.put("/v1/queues/second", json={"kind": "log"})
        made = await http.put("/v1/queues/second/groups/readers", json={})
        assert made.status_code == 200, made.text
    yield f"ws://{host}:{port}/v1/queues"
    await server.close(1.0)
    await node.close()


async def put(address: str, queue: str, chunks: list[bytes]) -> list[list[Any]]:
    """The answer to each chunk, by its number."""
    async with connect(f"{address}/{queue}/streams/put") as socket:
        for number, each in enumerate(chunks):
            await tell(socket, "put", number, each)
        return sorted([await told(socket) for _ in chunks], key=lambda frame: int(frame[1]))


async def test_messages_go_in_and_come_out_by_hand(address: str) -> None:
    producer = os.urandom(16)
    answers = await put(
        address,
        "events",
        [
            chunk([b"zero", b"", b"two"], None, producer, 1),
            chunk([b"three", b"four"], [{"color": "red"}, {}], producer, 2),
            chunk([b"zero", b"", b"two"], None, producer, 1),  # again: recognised
            chunk([b"six"], None, producer, 4),  # something is missing before it
        ],
    )
    extent = answers[0][2]
    assert answers[0] == ["confirmed", 0, extent, 0, 3, False]
    assert answers[1] == ["confirmed", 1, extent, 3, 2, False]
    assert answers[2] == ["confirmed", 2, extent, 0, 3, True]
    assert answers[3][:3] == ["refused", 3, "invalid"]
    assert await put(address, "events", [chunk([b"five"])]) == [["confirmed", 0, extent, 5, 1, False]]

    async with connect(f"{address}/events/groups/readers/streams/get?visibility_s=60") as socket:
        await tell(socket, "credit", 5, 1_000_000)
        seen: dict[bytes, dict[str, str]] = {}
        parcels: list[list[Any]] = []
        while len(seen) < 6:
            if len(seen) == 5:  # what lies together may come together, but never more than there is credit for
                await tell(socket, "credit", 95)
            name, parcel = await told(socket)
            assert name == "deliver"
            assert (parcel[6], parcel[8] - parcel[7] > 0) == (1, True)
            messages = read_chunks(parcel[10])
            assert len(messages) == parcel[5]
            seen.update(messages)
            parcels.append(parcel)
        assert seen == {b"zero": {}, b"": {}, b"two": {}, b"three": {"color": "red"}, b"four": {}, b"five": {}}

        first = parcels[0]
        of = [*first[:6], first[9]]
        await tell(socket, "settle", 1, [[*of, "ack", [[first[4], first[5] - 1]]]])
        assert await told(socket) == ["settled", 1, [[[[first[4], first[5] - 1]], "", ""]]]
        await tell(socket, "settle", 2, [[*of, "ack", [[first[4], first[5]]]]])  # all but the last are done
        last = first[4] + first[5] - 1
        assert await told(socket) == ["settled", 2, [[[[last, 1]], "", ""]]]

        second = parcels[1]
        of = [*second[:6], second[9]]
        await tell(socket, "settle", 3, [[*of, "extend", [[second[4], second[5]]], 30_000]])
        assert await told(socket) == ["settled", 3, [[[[second[4], second[5]]], "", ""]]]
        await tell(socket, "settle", 4, [[*of, "nack", [[second[4], second[5]]], 0]])
        again = None
        for _ in range(2):
            frame = await told(socket)
            if frame[0] == "deliver":
                again = frame[1]
            else:
                assert frame == ["settled", 4, [[[[second[4], second[5]]], "", ""]]]
        assert again is not None
        assert (again[4], again[6], read_chunks(again[10])) == (second[4], 2, read_chunks(second[10]))
        await tell(socket, "stop")
        assert await told(socket) == ["stopped"]


async def _parcel(socket: ClientConnection) -> list[Any]:
    await tell(socket, "credit", 1)
    name, parcel = await told(socket)
    assert name == "deliver"
    found: list[Any] = parcel
    return found


async def test_deliveries_of_others_are_not_to_be_acked(address: str) -> None:
    for queue in ("events", "second"):
        assert (await put(address, queue, [chunk([b"a", b"b"])]))[0][0] == "confirmed"
    async with (
        connect(f"{address}/events/groups/readers/streams/get") as mine,
        connect(f"{address}/events/groups/others/streams/get") as other,
        connect(f"{address}/second/groups/readers/streams/get") as elsewhere,
    ):
        parcel = await _parcel(mine)
        extent, reader, epoch, delivery, first, count, code = *parcel[:6], parcel[9]
        forged = [
            [extent, reader, epoch, delivery, first, count, bytes(len(code)), "ack", [[first, 1]]],
            [extent, reader, epoch, delivery, first, count + 1, code, "ack", [[first + 1, 1]]],  # not delivered yet
            [extent, reader, epoch, delivery + 1, first, count, code, "ack", [[first, 1]]],
            ["nowhere", reader, epoch, delivery, first, count, code, "ack", [[first, 1]]],
        ]
        await tell(mine, "settle", 1, forged)
        _, _, results = await told(mine)
        assert [(ranges, error) for ranges, error, _ in results] == [([], "invalid")] * 4
        good = [extent, reader, epoch, delivery, first, count, code, "ack", [[first, 1]]]
        for socket in (other, elsewhere):  # of another group, of another queue
            await tell(socket, "settle", 1, [good])
            _, _, ((ranges, _, _),) = await told(socket)
            assert ranges == []
        await tell(mine, "settle", 2, [good])
        assert (await told(mine))[2] == [[[[first, 1]], "", ""]]
