"""NATS JetStream by nats-py: a stream in files, and a pull consumer that the tasks of a process share.

    put   publish_async of the whole batch, then wait for all acknowledgements
    get   fetch(batch)
    ack   ack of each: a message without an answer, so nothing is waited for

As it comes the server syncs its files every two minutes; `sync_interval: always` (2.10 and newer) before every
acknowledgement. Where the system's is older or missing, Go builds one, once. Queues are work-queue streams, where an
acked message is gone; fan-out has a stream that keeps its messages, and a consumer for each group.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import nats
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from capellini.bench.peers.peer import AsyncLane, Got, Missing, Server, accepts, find, free_port, said
from capellini.local.jars import cache_folder, locked

READERS: Final = "readers"
ACK_WAIT_S: Final = 600.0  # nothing comes back by itself while it is measured
WAIT_S: Final = 0.2
MOST_PENDING: Final = 200_000  # never the limit
SYNC_SINCE: Final = (2, 10)
MODULE: Final = "github.com/nats-io/nats-server/v2"  # as Go names it
BUILT: Final = "v2.15.2"
BUILD_WITHIN_S: Final = 600
CLOSE_WITHIN_S: Final = 5


class Nats(Server):
    name = "nats_jetstream"
    label = "NATS JetStream"
    says = "NATS JetStream, files, synced every two minutes, publish_async, fetch, ack without answer, nats-py"
    durable = "up to two minutes of puts are lost with the machine"
    lacks: Mapping[str, str] = {"delays": "a message of a stream is there at once"}
    about_per_s = 6_000
    sync = ""
    port = 0

    def start(self) -> None:
        program = _program()
        if self.sync and _numbers(self.version()) < SYNC_SINCE:
            raise Missing(f"nats-server {self.version()} cannot sync always: that needs 2.10")
        self.port = self.port or free_port()
        config = self.folder / "nats.conf"
        sync = f"sync_interval: {self.sync}" if self.sync else ""
        store = f'jetstream {{ store_dir: "{self.folder / "store"}", max_file_store: 20GB\n {sync} }}'
        config.write_text(f"listen: 127.0.0.1:{self.port}\nmax_payload: 8MB\n{store}\n")
        self.spawn([program, "-c", str(config)])
        self.until(lambda: accepts(self.port))

    def version(self) -> str:
        return _version_of(_program())

    @property
    def address(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def fresh(self, queue: str) -> None:
        self._make(queue, [READERS], RetentionPolicy.WORK_QUEUE)

    def fresh_groups(self, queue: str, groups: Sequence[str]) -> None:
        self._make(queue, groups, RetentionPolicy.LIMITS)

    def _make(self, queue: str, groups: Sequence[str], retention: RetentionPolicy) -> None:
        async def make() -> None:
            client = await nats.connect(self.address)
            stream = client.jetstream()
            await stream.add_stream(
                StreamConfig(name=queue, subjects=[queue], retention=retention, storage=StorageType.FILE)
            )
            for group in groups:
                reader = ConsumerConfig(
                    durable_name=group, ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S, max_ack_pending=MOST_PENDING
                )
                await stream.add_consumer(queue, reader)
            await client.close()

        asyncio.run(make())


class NatsAlways(Nats):
    label = "NATS JetStream, sync always"
    says = "NATS JetStream, files, sync_interval always, publish_async, fetch, ack without answer, nats-py"
    durable = ""
    about_per_s = 2_000
    sync = "always"


def _program() -> str:
    """One that can sync always if it can be had, on this machine or built by Go; else what the packages bring."""
    here = shutil.which("nats-server")
    if here is not None and _numbers(_version_of(here)) >= SYNC_SINCE:
        return here
    return _built() or find("nats-server", "nats-server")


def _built() -> str | None:
    """Where Go's own is, built if need be. The file is complete or absent."""
    cache = cache_folder()
    final = cache / f"nats-server-{BUILT}"
    with locked(cache / f"{final.name}.lock"):
        go = shutil.which("go")
        if final.exists() or go is None:
            return str(final) if final.exists() else None
        part = Path(tempfile.mkdtemp(prefix=f"{final.name}.part-", dir=cache))
        places = {"GOPATH": str(part), "GOBIN": str(part), "GOCACHE": str(part / "built"), "GOFLAGS": "-modcacherw"}
        command = [go, "install", f"{MODULE}@{BUILT}"]
        try:
            subprocess.run(command, env={**os.environ, **places}, capture_output=True, timeout=BUILD_WITHIN_S)
            if (part / "nats-server").exists():
                (part / "nats-server").rename(final)
        except subprocess.TimeoutExpired:
            pass  # then it is the system's
        finally:
            shutil.rmtree(part)
    return str(final) if final.exists() else None


def _version_of(program: str) -> str:
    return said(program, "--version").rpartition("v")[2]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


class NatsLane(AsyncLane):
    def __init__(self, client: Any, stream: Any, queue: str) -> None:
        self._client, self._stream, self._queue = client, stream, queue
        self._reader: Any = None

    @classmethod
    async def open(
        cls, address: str, queue: str, count: int, groups: Sequence[str] = (), gets: bool = True, batch: int = 1
    ) -> list[AsyncLane]:
        client = await nats.connect(address)
        stream = client.jetstream(publish_async_max_pending=max(4_000, 2 * batch * count))
        lanes = [cls(client, stream, queue) for _ in range(count)]
        if gets:
            for lane in lanes:
                group = groups[0] if groups else READERS
                lane._reader = await stream.pull_subscribe_bind(durable=group, stream=queue)
        return list(lanes)

    async def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None:
        if len(bodies) == 1:
            await self._stream.publish(self._queue, bodies[0])
            return
        await asyncio.gather(*[await self._stream.publish_async(self._queue, body) for body in bodies])

    async def get(self, most: int) -> list[Got]:
        try:
            return [(message.data, message) for message in await self._reader.fetch(most, timeout=WAIT_S)]
        except TimeoutError:  # its own is one; under load it lets others through
            return []

    async def ack(self, handles: list[Any]) -> None:
        for message in handles:
            await message.ack()

    async def close(self) -> None:
        if not self._client.is_closed:
            await self._client.flush(CLOSE_WITHIN_S)  # acks under way
            await self._client.close()
