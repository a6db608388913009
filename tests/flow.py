"""Messages flowing through real nodes while these are killed, paused and cut off; then a history for the checkers.

    producers ──▶ nodes (`capellini serve` processes) ──▶ consumers      each call is written down with its answer
                    ▲ faults, by seed, at moments set by what was answered so far
    then: all nodes up ──▶ drain ──▶ the checkers of `capellini.proof`

What is true of calls under faults, and kept here:
- A call whose answer was lost, or whose caller went away, is open: neither done nor failed. The client says Unknown for
  it, also when a repetition finds its receipt stale: such an ack may have been done, so its message may be gone.
- What was claimed by a get whose answer never arrived is in flight until its visibility ends. So the drain ends when
  all that was confirmed is accounted for, and is patient for it; only then it looks for what must not come, for longer
  than anything may be hidden.
- No moment is awaited by sleeping, and no duration is judged: what is waited for is asked for until a deadline far
  beyond what it takes. The sleeps here are consumers that work, and chance.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from capellini import (
    AsyncClient,
    CapelliniError,
    Delivery,
    Done,
    NewMessage,
    Problem,
    Put,
    Unavailable,
    Unknown,
    connect_async,
)
from capellini.proof.checkers import check
from capellini.proof.history import Call, History, Sent, Violation

T = TypeVar("T")
CAPELLINI: Final = str(Path(sys.executable).with_name("capellini"))
DEADLINE_S: Final = 300.0  # of anything that is waited for: nothing fails because a machine is slow
POLL_S: Final = 0.02
LOOK_S: Final = 0.1
GRAIN_S: Final = 0.005  # a takeover lies somewhere between two looks: every moment there may be the one
LEAST_PORT: Final = 10_240
OLD_RECEIPTS: Final = 30
CONSUMING: Final = frozenset(("get", "ack", "nack", "extend"))
MOST_DELAY_S: Final = 1.5
DRAIN_VISIBILITY_S: Final = 60.0  # nothing fails any more: what is taken is acked
SHOWN: Final = 20  # violations in a message; more do not help


async def until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {deadline_s:g} s: {what}"
        await asyncio.sleep(POLL_S)


def fixed_port() -> int:
    """A free port that stays free while its node is down: below those the system gives to outgoing connections."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(LEAST_PORT, first)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Server:
    """One `capellini serve`. It can be killed, paused, and started again under its name and port.

    A node ends where its store is away at the start. With `supervised` it is then started again, as a supervisor would;
    without, that it ends is a failure.
    """

    def __init__(self, name: str, store: str, logs: Path, supervised: bool = False) -> None:
        self.name = name
        self.supervised = supervised
        self.port = fixed_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = logs / f"{name}.log"
        self._command = [CAPELLINI, "serve", "--store", store, "--listen", f"127.0.0.1:{self.port}", "--node", name]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    async def up(self) -> None:
        """Until it answers."""

        def answers() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                refused = self._process.returncode in (1, 2)  # what it says when it cannot start
                assert self.supervised and refused, f"{self.name} ended: {self.tail()}"
                self.start()
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                return False
            return True

        try:
            await until(answers, f"{self.name} listens")
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.tail()}") from None

    def strike(self) -> None:
        """Killed, and not waited for."""
        assert self._process is not None
        self._process.kill()

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait, DEADLINE_S)

    def leave(self) -> None:
        """As it is told to when a machine is taken down."""
        assert self._process is not None
        self._process.terminate()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2_000:]

    def failures(self) -> list[str]:
        """What broke inside: a node that is well never logs a traceback, whatever happens to its store."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [
            f"{self.name} logged: {' / '.join(lines[max(0, at - 1) : at + 40])}"
            for at, line in enumerate(lines)
            if line.startswith("Traceback")
        ]


@asynccontextmanager
async def serving(servers: Sequence[Server]) -> AsyncIterator[None]:
    """They are up, and killed in the end."""
    try:
        for server in servers:
            server.start()
        await asyncio.gather(*[server.up() for server in servers])
        yield
    finally:
        await asyncio.gather(*[server.kill() for server in servers])


class Flow:
    """Producers and consumers on one queue of these servers, until the faults are over and `least` messages are put."""

    def __init__(
        self,
        servers: Sequence[Server],
        seed: int,
        least: int,
        *,
        clients: int = 4,
        visibility_s: float = 3.0,
        pause_s: float = 0.02,
        batch: int = 20,
        most_delay_s: float = MOST_DELAY_S,
        kind: str = "work",
        options: dict[str, float] | None = None,
        queue: str = "jobs",
    ) -> None:
        self.servers = list(servers)
        self.homes = [self.servers]  # a key is known to all nodes of a home
        self.chance = random.Random(seed)
        self.history = History(epoch_s=time.time())
        self.queue = queue
        self.source = self.queue  # what consumers name
        self.visibility_s = visibility_s
        self.pause_s = pause_s  # of a producer between two puts, on average
        self.batch = batch
        self.most_delay_s = most_delay_s
        self.kind, self.options = kind, {"bucket_size": 100.0} if options is None else options
        self.answered = 0  # calls
        self.put = 0  # messages, confirmed or not
        self.stale = 0  # receipts refused
        self._least = least
        self._clients = clients
        self._faults_over = False
        self._put_over = False
        self._bodies: dict[str, bytes] = {}  # by receipt
        self._confirmed: set[bytes] = set()
        self._acked: set[bytes] = set()  # or perhaps
        self._looked_s = 0.0
        self._patient: dict[str, AsyncClient[bytes]] = {}
        self._hasty: dict[str, AsyncClient[bytes]] = {}

    # The run

    async def run(self, faults: Callable[[Flow], Awaitable[None]]) -> list[Violation]:
        """All violations. The servers are started here, and killed at the end."""
        async with serving(self.servers):
            await self.through(faults)
        return self.judged()

    async def through(self, faults: Callable[[Flow], Awaitable[None]]) -> None:
        """The same on servers that are up, and stay so."""
        # With one node all wait for it; with several nobody is to hang at one that is away while the others are idle.
        looks: asyncio.Task[None] | None = None
        patience_s, timeout_s = (30.0, 30.0) if len(self.servers) == 1 else (1.0, 6.0)
        try:
            for server in self.servers:
                self._patient[server.name] = connect_async(
                    server.url, patience_s=patience_s, request_timeout_s=timeout_s
                )
                self._hasty[server.name] = connect_async(server.url, patience_s=0.0, request_timeout_s=6.0)
            await self._create()
            looks = asyncio.create_task(self._looks())
            await self._work(faults)
            self.history.broken += [f"{one.name} ended: {one.tail()}" for one in self.servers if not one.running]
            await asyncio.gather(*[server.up() for server in self.servers])
            await self._drain()
        finally:
            if looks is not None:
                looks.cancel()
            for client in (*self._patient.values(), *self._hasty.values()):
                await client.close()

    def judged(self) -> list[Violation]:
        """What the checkers say when all is over, and what the servers said of themselves."""
        for server in self.servers:
            self.history.broken += server.failures()
        return self.verdict()

    def verdict(self) -> list[Violation]:
        """What the checkers say."""
        return check(self.history)

    async def _work(self, faults: Callable[[Flow], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._clients):
                group.create_task(self._consume(f"c{number}", random.Random(self.chance.random())))
            async with asyncio.TaskGroup() as producers:
                for number in range(self._clients):
                    producers.create_task(self._produce(f"p{number}", random.Random(self.chance.random())))
                await faults(self)
                self._faults_over = True
            self._put_over = True

    async def _create(self) -> None:
        client, end_s = self._patient[self.servers[0].name], time.monotonic() + DEADLINE_S
        while True:
            try:
                await client.create_queue(self.queue, self.kind, visibility_s=self.visibility_s, **self.options)
                return
            except (Unavailable, Unknown):
                assert time.monotonic() < end_s, "the queue cannot be created"

    async def _looks(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Who holds what? Asked all the time; kinds whose work is taken over say with `looked` what came out."""

    def looked(self, asked_s: float, taken_over: bool) -> None:
        if taken_over:
            moments = int((self._now_s() - self._looked_s) / GRAIN_S) + 1
            self.history.taken_over_s += [self._looked_s + GRAIN_S * each for each in range(moments)]
        self._looked_s = asked_s

    async def answers(self, count: int) -> None:
        """Until so many more calls were answered: the nodes are at work."""
        target = self.answered + count
        await until(lambda: self.answered >= target, f"{count} answers")

    async def call(
        self, who: str, server: Server, op: str, work: Awaitable[T], cut_s: float | None = None, **asked: Any
    ) -> tuple[Call, T | None]:
        """One call, written down. None: it failed, or is open (its caller went away after `cut_s`)."""
        name = self.source if op in CONSUMING else self.queue
        call = self.history.begin(who, server.name, op, name, self._now_s())
        for name, value in asked.items():
            setattr(call, name, value)
        try:
            async with asyncio.timeout(cut_s):
                answer = await work
        except TimeoutError:
            return call, None
        except CapelliniError as error:
            call.error, call.says = error.name, error.says
            call.ended_s = self._now_s()
            await asyncio.sleep(POLL_S)  # a caller that is refused at once does not spin
            return call, None
        call.ended_s = self._now_s()
        self.answered += not _unheard(answer)
        return call, answer

    def noted_id(self, id: str) -> str:
        """A message's id as the history has it."""
        return id

    def noted(self, receipt: str) -> str:
        """A receipt as the history has it."""
        return receipt

    def _now_s(self) -> float:
        """Wall time, which is what nodes stamp deliveries with."""
        return time.time() - self.history.epoch_s

    # Producers

    async def _produce(self, who: str, chance: random.Random) -> None:
        number = 0
        while not (self._faults_over and self.put >= self._least):
            way = chance.choice(("single", "batch", "batch", "keyed", "delayed"))
            count = chance.randint(2, self.batch) if way == "batch" else 1
            sent = []
            for _ in range(count):
                number += 1
                name = f"{who}.{number}"
                delay_s = chance.uniform(0.1, self.most_delay_s) if way == "delayed" else 0.0
                attributes = {"of": name} if chance.random() < 0.3 else {}
                sent.append(Sent(name.encode(), attributes, delay_s, f"k{name}" if way == "keyed" else None))
            self.put += count
            if way == "keyed":
                await self._put_once(who, chance, sent)
            else:
                await self._put(who, chance.choice(self.servers), self._patient, sent, _cut_s(chance))
            await asyncio.sleep(chance.expovariate(1 / self.pause_s))

    async def _put_once(self, who: str, chance: random.Random, sent: list[Sent]) -> None:
        """Until it is confirmed, each time at another node; sometimes once more after that."""
        servers = self.homes[0] if len(self.homes) == 1 else chance.choice(self.homes)
        at = chance.randrange(len(servers))
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            server = servers[at % len(servers)]
            confirmed = await self._put(who, server, self._hasty, sent, _cut_s(chance))
            if confirmed and chance.random() < 0.8:
                return
            at += 1
            await asyncio.sleep(chance.uniform(0.0, 0.2))

    async def _put(
        self, who: str, server: Server, clients: dict[str, AsyncClient[bytes]], sent: list[Sent], cut_s: float | None
    ) -> bool:
        messages = [NewMessage(one.body, one.attributes, one.delay_s, one.key) for one in sent]
        work = clients[server.name].put_many(self.queue, messages)
        call, answers = await self.call(who, server, "put", work, cut_s, sent=tuple(sent))
        call.puts = [
            Put(self.noted_id(answer.id), answer.duplicate) if isinstance(answer, Put) else answer
            for answer in answers or ()
        ]
        for one, answer in zip(sent, call.puts, strict=False):
            if isinstance(answer, Put):
                self._confirmed.add(one.body)
        return bool(call.puts) and all(isinstance(answer, Put) for answer in call.puts)

    # Consumers

    async def _consume(self, who: str, chance: random.Random) -> None:
        old: list[str] = []
        while not self._put_over:
            server = chance.choice(self.servers)
            wait_s, cut_s = chance.choice((0.0, 0.5, 2.0)), _cut_s(chance)
            receipts = await self._get(who, server, chance.choice((1, 5, 30, 100)), wait_s, None, cut_s)
            if receipts:
                await self._handle(who, chance, receipts)
                old = (old + chance.sample(receipts, min(3, len(receipts))))[-OLD_RECEIPTS:]
            if old and chance.random() < 0.3:
                await self._use(who, chance, chance.choice(("ack", "nack", "extend")), [chance.choice(old)])

    async def _get(
        self, who: str, server: Server, count: int, wait_s: float, visibility_s: float | None, cut_s: float | None
    ) -> list[str]:
        work = self._patient[server.name].get(self.source, count, wait_s=wait_s, visibility_s=visibility_s)
        call, messages = await self.call(who, server, "get", work, cut_s, count=count, wait_s=wait_s)
        receipts: list[str] = []
        for one in messages or ():
            noted = self.noted(one.receipt)
            id = self.noted_id(one.id)
            call.deliveries.append(
                Delivery(id, noted, one.raw, one.attributes, one.put_at, one.deliveries, one.visible_at)
            )
            self._bodies[noted] = one.raw
            receipts.append(one.receipt)
        return receipts

    async def _handle(self, who: str, chance: random.Random, receipts: list[str]) -> None:
        """Most are acked; some given back, kept longer, acked twice, or forgotten until their visibility ends."""
        ways = ("nack", "extend", "twice", "forget")
        groups: dict[str, list[str]] = {}
        for receipt in receipts:
            groups.setdefault("ack" if chance.random() < 0.85 else chance.choice(ways), []).append(receipt)
        for way, some in groups.items():
            if way == "nack":
                await self._use(who, chance, "nack", some)
            elif way == "extend":
                await self._use(who, chance, "extend", some)
                await asyncio.sleep(chance.uniform(0.0, 0.2))
            if way in ("ack", "twice", "extend"):
                await self._use(who, chance, "ack", some)
            if way == "twice":
                await self._use(who, chance, "ack", some)

    async def _use(self, who: str, chance: random.Random, op: str, receipts: list[str]) -> None:
        """At any node: a receipt is good everywhere."""
        server = chance.choice(self.servers)
        client, seconds = self._patient[server.name], 0.0
        if op == "ack":
            work = client.ack_many(self.source, receipts)
        elif op == "nack":
            seconds = chance.choice((0.0, chance.uniform(0.1, MOST_DELAY_S)))
            work = client.nack_many(self.source, receipts, seconds)
        else:
            seconds = chance.uniform(0.5, self.visibility_s)
            work = client.extend_many(self.source, receipts, seconds)
        all_seconds = tuple(seconds for _ in receipts) if op != "ack" else ()
        call, results = await self.call(
            who, server, op, work, _cut_s(chance), receipts=tuple(map(self.noted, receipts)), seconds=all_seconds
        )
        call.results = results or []
        self._note(call)

    def _note(self, call: Call) -> None:
        for index, receipt in enumerate(call.receipts):
            result = call.results[index] if call.results else None
            self.stale += isinstance(result, Problem) and result.error == "stale"
            perhaps = call.maybe if result is None else isinstance(result, Problem) and result.error == "unknown"
            if call.op == "ack" and (perhaps or isinstance(result, Done)):
                self._acked.add(self._bodies[receipt])

    # The end

    async def _drain(self) -> None:
        """Take and ack until all that was confirmed is accounted for; then look for what should not be there."""
        chance = random.Random(self.chance.random())
        hidden_s = max(self.visibility_s, self.most_delay_s) + 2 * self.history.max_skew_s
        came_s = time.monotonic()
        while time.monotonic() - came_s < (DEADLINE_S if self._confirmed - self._acked else hidden_s):
            server = chance.choice(self.servers)
            receipts = await self._get("drain", server, 500, 1.0, DRAIN_VISIBILITY_S, None)
            if receipts:
                came_s = time.monotonic()
                work = self._patient[server.name].ack_many(self.source, receipts)
                call, results = await self.call("drain", server, "ack", work, receipts=tuple(map(self.noted, receipts)))
                call.results = results or []
                self._note(call)
        self.history.drained = True


def _unheard(answer: object) -> bool:
    """No node answered this: the client says so for each item."""
    return (
        isinstance(answer, list)
        and bool(answer)
        and all(isinstance(one, Problem) and one.error in (Unavailable.name, Unknown.name) for one in answer)
    )


def _cut_s(chance: random.Random) -> float | None:
    """Some callers go away before the answer."""
    return chance.uniform(0.0, 0.3) if chance.random() < 0.04 else None


def told(flow: Flow, violations: list[Violation]) -> str:
    """For the message of a failed assertion: the violations, and all that was done with the first one's message."""
    lines = [str(one) for one in violations[:SHOWN]]
    if violations:
        name = violations[0].message
        lines += [line for line in flow.history.lines() if re.search(rf"\b{re.escape(name)}(?![\w.])", line)]
    return f"{len(violations)} violations\n" + "\n".join(line[:2_000] for line in lines)
