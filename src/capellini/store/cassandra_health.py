"""Which servers of a cluster answer now: each is asked, and what it said is believed for a moment.

    OPTIONS (nine bytes of CQL's protocol: the first question of every client, which needs no login) ──▶ any answer

The question goes by a connection of its own, not by the driver: that one knows a server whose connection broke, but
takes a server that hangs for well until a heartbeat fails, and knows nothing of those in other data centres. A process
that is stopped still has its connections accepted by the kernel, so that only an answer counts.

It is a guess. A server that answers here may be cut off from the others, and one that was slow to answer may be well:
whoever asks has to live with both.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Final

from capellini.model.address import CassandraAddress
from capellini.model.clock import Clock

ANSWER_S: Final = 1.0  # a server that is well answers within milliseconds
UP_S: Final = 1.0  # how long an answer is believed
DOWN_S: Final = 3.0  # how long a silence is: asking again takes a while, and who is down stays so for a while
OPTIONS: Final = bytes((4, 0, 0, 0, 5, 0, 0, 0, 0))  # version 4, no flags, stream 0, opcode 5, no body
HEADER: Final = 9  # bytes before the body of any answer


class Health:
    def __init__(self, address: CassandraAddress, clock: Clock) -> None:
        self._address, self._clock = address, clock
        self._known: dict[str, tuple[bool, float]] = {}  # answered, until when that is believed
        self._asking: dict[str, asyncio.Task[bool]] = {}

    async def answering(self, hosts: Iterable[str]) -> set[str]:
        """Those that answer. All are asked at a time, each once however many want to know."""
        wanted = list(dict.fromkeys(hosts))
        answers = await asyncio.gather(*(self._answers(host) for host in wanted))
        return {host for host, up in zip(wanted, answers, strict=True) if up}

    async def _answers(self, host: str) -> bool:
        up, until_s = self._known.get(host, (False, 0.0))
        if self._clock.elapsed_s() < until_s:
            return up
        task = self._asking.get(host)
        if task is None:
            task = self._asking[host] = asyncio.get_running_loop().create_task(self._ask(host))
            task.add_done_callback(lambda _: self._asking.pop(host, None))
        return await asyncio.shield(task)

    async def _ask(self, host: str) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                up = await self._answered(host)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            up = False
        self._known[host] = up, self._clock.elapsed_s() + (UP_S if up else DOWN_S)
        return up

    async def _answered(self, host: str) -> bool:
        reader, writer = await asyncio.open_connection(host, self._address.port, ssl=self._tls())
        try:
            writer.write(OPTIONS)
            return len(await reader.readexactly(HEADER)) == HEADER
        finally:
            writer.transport.abort()  # nothing is to be finished: it was a question

    def _tls(self) -> ssl.SSLContext | None:
        if not (self._address.ssl or self._address.ssl_ca):
            return None
        context = ssl.create_default_context(cafile=self._address.ssl_ca)
        context.check_hostname = False  # the driver verifies whom it talks to; this only hears that somebody is there
        return context
