"""RabbitMQ quorum queues by pika's asyncio connection, confirms and prefetch: what its pages call the fast way.

    put   basic_publish of the whole batch, persistent, then wait for the broker's confirms
    get   basic_consume with prefetch: messages are here before they are asked for
    ack   basic_ack(multiple) up to the last of the batch; AMQP has no answer to it, so nothing is waited for

A lane has a channel of its own, on the process's connection. Delays are a queue whose messages expire into the real
one (at least once); fan-out is an exchange bound to a queue for each group.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from capellini.bench.peers.peer import AsyncLane, Got, Missing, Server, accepts, find, free_port

PLACE: Final = "/usr/lib/rabbitmq/bin"
QUORUM: Final[Mapping[str, object]] = {"x-queue-type": "quorum"}
LASTING: Final = 2  # delivery mode
WAIT_S: Final = 0.2
AHEAD_BATCHES: Final = 4
LEAST_AHEAD: Final = 100
MOST_AHEAD: Final = 2_000  # its pages advise against more for quorum queues


class Rabbitmq(Server):
    name = "rabbitmq"
    label = "RabbitMQ quorum"
    says = "RabbitMQ quorum queue of one node, persistent messages, confirms, prefetch, multiple acks, pika on asyncio"
    port = 0
    epmd_port = 0
    _epmd: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        find("rabbitmq-server", "rabbitmq-server")
        program = shutil.which("rabbitmq-server", path=PLACE)  # what that starts as a user and in a folder of its own
        if program is None:
            raise Missing(f"rabbitmq-server is not in {PLACE}, where Debian's package has it")
        self.port, self.epmd_port = self.port or free_port(), self.epmd_port or free_port()
        environment = self._environment()
        if self._epmd is None:  # else it would start one that outlives it
            self._epmd = subprocess.Popen(
                [find("epmd", "erlang-base"), "-port", str(self.epmd_port), "-address", "127.0.0.1"],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self.spawn([program], env=environment, cwd=self.folder)
        self.until(self._answers)

    def _environment(self) -> dict[str, str]:
        config = self.folder / "rabbitmq.conf"
        config.write_text("vm_memory_high_watermark.relative = 0.6\ndisk_free_limit.absolute = 1GB\n")
        plugins = self.folder / "enabled_plugins"
        plugins.write_text("[].\n")
        mine = {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        return {**os.environ, **mine}

    def _answers(self) -> bool:
        if not accepts(self.port):
            return False
        try:
            self._connection().close()
        except pika.exceptions.AMQPError:
            return False
        return True

    def stop(self) -> None:
        super().stop()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def version(self) -> str:
        names = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return names[-1].name.partition("-")[2] if names else ""

    @property
    def address(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def _connection(self) -> Any:
        return pika.BlockingConnection(pika.URLParameters(self.address))

    def fresh(self, queue: str) -> None:
        connection = self._connection()
        connection.channel().queue_declare(queue, durable=True, arguments=dict(QUORUM))
        connection.close()

    def fresh_delayed(self, queue: str, delay_s: float) -> None:
        self.fresh(queue)
        connection = self._connection()
        waiting = {
            **QUORUM, "x-message-ttl": round(delay_s * 1000), "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue, "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }  # fmt: skip
        connection.channel().queue_declare(_waiting(queue), durable=True, arguments=waiting)
        connection.close()

    def fresh_groups(self, queue: str, groups: Sequence[str]) -> None:
        connection = self._connection()
        channel = connection.channel()
        channel.exchange_declare(queue, "fanout", durable=True)
        for group in groups:
            channel.queue_declare(f"{queue}_{group}", durable=True, arguments=dict(QUORUM))
            channel.queue_bind(f"{queue}_{group}", queue)
        connection.close()


def _waiting(queue: str) -> str:
    return f"{queue}_waiting"


class RabbitmqLane(AsyncLane):
    def __init__(self, connection: Any, channel: Any, queue: str, groups: Sequence[str]) -> None:
        self._connection, self._channel = connection, channel
        self._queue, self._groups = queue, groups
        self._sent = 0  # the broker counts as we do, from 1
        self._unconfirmed: set[int] = set()
        self._waits: asyncio.Future[None] | None = None  # for confirms
        self._arrival: asyncio.Future[None] | None = None  # for messages
        self._here: deque[tuple[bytes, int]] = deque()

    @classmethod
    async def open(
        cls, address: str, queue: str, count: int, groups: Sequence[str] = (), gets: bool = True, batch: int = 1
    ) -> list[AsyncLane]:
        connection = await _opened(address)
        lanes = [cls(connection, await _channel(connection), queue, groups) for _ in range(count)]
        for lane in lanes:
            await lane._confirming()
            if gets:
                await lane._consume(min(MOST_AHEAD, max(LEAST_AHEAD, batch * AHEAD_BATCHES)))
        return list(lanes)

    async def _confirming(self) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel.confirm_delivery(self._on_confirm, callback=lambda _: done.set_result(None))
        await done

    async def _consume(self, ahead: int) -> None:
        limited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel.basic_qos(prefetch_count=ahead, callback=lambda _: limited.set_result(None))
        await limited
        queue = f"{self._queue}_{self._groups[0]}" if self._groups else self._queue
        self._channel.basic_consume(queue, self._on_message)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if not isinstance(method, pika.spec.Basic.Ack):
            raise RuntimeError(f"refused: {method}")
        if method.multiple:
            self._unconfirmed = {tag for tag in self._unconfirmed if tag > method.delivery_tag}
        else:
            self._unconfirmed.discard(method.delivery_tag)
        if not self._unconfirmed:
            _wake(self._waits)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._here.append((body, method.delivery_tag))
        _wake(self._arrival)

    async def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None:
        exchange = self._queue if self._groups else ""
        key = _waiting(self._queue) if delay_s else self._queue
        self._waits = asyncio.get_running_loop().create_future()
        for body in bodies:
            self._channel.basic_publish(exchange, key, body, PROPERTIES)
            self._sent += 1
            self._unconfirmed.add(self._sent)
        await self._waits

    async def get(self, most: int) -> list[Got]:
        if not self._here:
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._arrival, WAIT_S)
            except TimeoutError:
                return []
        return [self._here.popleft() for _ in range(min(most, len(self._here)))]

    async def ack(self, handles: list[int]) -> None:
        self._channel.basic_ack(handles[-1], multiple=True)

    async def close(self) -> None:
        if not (self._connection.is_closing or self._connection.is_closed):
            closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._connection.add_on_close_callback(lambda *_: closed.set_result(None))
            self._connection.close()
            await closed


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


PROPERTIES: Final = pika.BasicProperties(delivery_mode=LASTING)


async def _opened(address: str) -> Any:
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection = AsyncioConnection(
        pika.URLParameters(address),
        on_open_callback=opened.set_result,
        on_open_error_callback=lambda _, error: opened.set_exception(Missing(f"rabbitmq: {error}")),
        custom_ioloop=asyncio.get_running_loop(),
    )
    await opened
    return connection


async def _channel(connection: Any) -> Any:
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection.channel(on_open_callback=opened.set_result)
    return await opened
