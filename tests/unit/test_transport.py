"""The HTTP client against real sockets: kept-alive connections, and errors that say whether it may have been done."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from capellini.client.reaching import Lost, Place, Response, Unreachable
from capellini.client.transport import Transport

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """A small server that answers as `script` says, and remembers what it was sent."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self.answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/msgpack\r\ncontent-length: 2\r\n\r\nok"
        self.close_after = False
        self.silent = False
        self.arrived = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                self.requests.append(head + await reader.readexactly(length))
                self.arrived.set()
                if not self.silent:
                    writer.write(self.answer)
                    await writer.drain()
                if self.close_after:
                    break
        writer.close()


@contextlib.asynccontextmanager
async def running(peer: Peer, **options: object) -> AsyncIterator[Transport]:
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = Transport(Place.of_url(f"http://127.0.0.1:{port}"), **options)  # type: ignore[arg-type]
    try:
        yield transport
    finally:
        await transport.close()
        server.close()


async def test_requests_share_a_kept_alive_connection() -> None:
    peer = Peer()
    async with running(peer) as transport:
        for _ in range(3):
            response = await transport.request("POST", "/v1/x", b"body")
            assert response == Response(200, b"ok", "application/msgpack", None)
    assert peer.connections == 1
    assert peer.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
    assert peer.requests[0].endswith(b"content-type: application/msgpack\r\ncontent-length: 4\r\n\r\nbody")


async def test_chunked_answers_interim_answers_and_retry_after_are_read() -> None:
    peer = Peer()
    peer.answer = (
        b"HTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.1 429 Too Many\r\nRetry-After: 3\r\nContent-Type: Application/JSON; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    async with running(peer) as transport:
        for _ in range(2):
            assert await transport.request("GET", "/") == Response(429, b"abcde", "application/json", 3.0)
    assert peer.connections == 1


async def test_an_answer_in_single_bytes_is_put_together() -> None:
    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc":
            writer.write(bytes([byte]))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(dribble, "127.0.0.1", 0)
    transport = Transport(Place("127.0.0.1", server.sockets[0].getsockname()[1]))
    assert (await transport.request("GET", "/")).body == b"abc"
    await transport.close()
    server.close()


async def test_large_bodies_go_both_ways() -> None:
    peer = Peer()
    large = bytes(3_000_000)
    peer.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + large
    async with running(peer) as transport:
        assert (await transport.request("POST", "/", large)).body == large
    assert peer.requests[0].endswith(large)


async def test_refused_means_surely_not_done() -> None:
    server = await asyncio.start_server(Peer().serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    transport = Transport(Place("127.0.0.1", port))
    with pytest.raises(Unreachable, match=f"no connection to http://127.0.0.1:{port}"):
        await transport.request("GET", "/")


async def test_an_end_before_the_answer_means_perhaps_done() -> None:
    peer = Peer()
    peer.silent = peer.close_after = True
    async with running(peer) as transport:
        with pytest.raises(Lost, match="may have been done"):
            await transport.request("POST", "/", b"x")
        peer.silent = peer.close_after = False
        assert (await transport.request("POST", "/", b"x")).body == b"ok"


async def test_half_an_answer_is_no_answer() -> None:
    peer = Peer()
    peer.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"
    peer.close_after = True
    async with running(peer) as transport:
        with pytest.raises(Lost):
            await transport.request("POST", "/", b"x")


async def test_what_is_not_http_is_lost() -> None:
    peer = Peer()
    peer.answer = b"SSH-2.0-OpenSSH\r\n\r\n"
    async with running(peer) as transport:
        with pytest.raises(Lost, match="not HTTP"):
            await transport.request("POST", "/", b"x")


async def test_no_answer_in_time_is_lost_and_its_connection_is_not_used_again() -> None:
    peer = Peer()
    peer.silent = True
    async with running(peer, request_timeout_s=0.05) as transport:
        with pytest.raises(Lost, match="no answer within"):
            await transport.request("GET", "/")
        peer.silent = False
        assert (await transport.request("GET", "/")).status == 200
    assert peer.connections == 2


async def test_an_answer_for_a_caller_that_left_reaches_nobody_else() -> None:
    peer = Peer()
    peer.silent = True
    async with running(peer) as transport:
        task = asyncio.create_task(transport.request("GET", "/left"))
        await asyncio.wait_for(peer.arrived.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        peer.silent = False
        assert (await transport.request("GET", "/next")).body == b"ok"
    assert peer.connections == 2


async def test_more_requests_than_connections_wait_their_turn() -> None:
    peer = Peer()
    async with running(peer, max_connections=2) as transport:
        answers = await asyncio.gather(*(transport.request("GET", f"/{each}") for each in range(50)))
    assert [answer.status for answer in answers] == [200] * 50
    assert peer.connections == 2


async def test_a_cancelled_wait_for_a_connection_holds_nobody_up() -> None:
    peer = Peer()
    peer.silent = True
    async with running(peer, max_connections=1) as transport:
        first = asyncio.create_task(transport.request("GET", "/1"))
        await asyncio.wait_for(peer.arrived.wait(), 5)
        second = asyncio.create_task(transport.request("GET", "/2"))
        third = asyncio.create_task(transport.request("GET", "/3"))
        await asyncio.sleep(0)
        second.cancel()
        peer.silent = False
        first.cancel()
        assert (await asyncio.wait_for(third, 5)).status == 200


async def test_a_unix_socket_is_a_place_too(tmp_path: Path) -> None:
    peer = Peer()
    path = str(tmp_path / "s")
    server = await asyncio.start_unix_server(peer.serve, path)
    transport = Transport(Place(unix=path))
    assert (await transport.request("GET", "/")).body == b"ok"
    await transport.close()
    server.close()
    missing = Transport(Place(unix=str(tmp_path / "none")))
    with pytest.raises(Unreachable):
        await missing.request("GET", "/")


async def test_a_closed_client_refuses() -> None:
    peer = Peer()
    async with running(peer) as transport:
        await transport.close()
        with pytest.raises(Unreachable, match="closed"):
            await transport.request("GET", "/")


def test_headers_are_single_lines() -> None:
    with pytest.raises(ValueError, match="one line"):
        Transport(Place("127.0.0.1", 1), headers={"x": "a\r\nevil: b"})


def certificate(folder: Path) -> tuple[Path, Path]:
    key, cert = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command = ["openssl", "req", "-x509", *curve, "-nodes", "-keyout", str(key), "-out", str(cert), *subject]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return key, cert


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_https_is_spoken_and_certificates_are_checked(tmp_path: Path) -> None:
    key, cert = certificate(tmp_path)
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(cert, key)
    server = await asyncio.start_server(Peer().serve, "127.0.0.1", 0, ssl=theirs)
    place = Place.of_url(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    trusting = Transport(place, ssl_context=ssl.create_default_context(cafile=str(cert)))
    assert (await trusting.request("POST", "/", b"x")).body == b"ok"
    await trusting.close()
    with pytest.raises(Unreachable, match="certificate"):
        await Transport(place).request("POST", "/", b"x")
    server.close()


def test_uvloop_works_too() -> None:
    async def ask() -> Response:
        async with running(Peer()) as transport:
            return await transport.request("POST", "/", b"x")

    assert uvloop.run(ask()).body == b"ok"


async def test_a_channel_that_is_being_opened_at_the_end_is_not_left_open() -> None:
    peer = Peer()
    peer.silent = True
    async with running(peer, channel=True) as transport:
        call = asyncio.create_task(transport.request("GET", "/v1/x"))
        await peer.arrived.wait()
        opening = transport._opening
        assert opening is not None
        await transport.close()
        with pytest.raises(Unreachable, match="closed"):
            await call
        assert opening.cancelled()
