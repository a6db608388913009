"""What a peer offers to the driver: a server that is started in a fresh folder on loopback, and lanes to it.

    Server     in the benchmark's process: start ─▶ address ─▶ stop; its pid tells what CPU it used
    Lane       in a driver's process: put, get, ack of whole batches, by the fastest documented way of its usual client
    AsyncLane  the same where that client is made for asyncio

Servers come from the system's packages. Where one is missing and we are root, apt-get brings it; else `Missing` is
raised and the figure is not measured.

What a peer cannot do at all (delays, groups) it says in `lacks`, and that work is skipped with its words.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from capellini.bench.usage import family

UP_WITHIN_S: Final = 60.0  # a loaded machine takes its time
DOWN_WITHIN_S: Final = 20.0
INSTALL_WITHIN_S: Final = 300.0
_updated: list[bool] = []  # apt-get update was run by this process
_installing = threading.Lock()  # apt-get knows one at a time

Got = tuple[bytes, Any]  # a body, and what `ack` needs


class Missing(Exception):
    """The server is not here and cannot be brought."""


class Server(ABC):
    """One server in a folder of its own. `name` is also the name of its module; `label` tells its settings apart."""

    name: str
    says: str  # how it is set up and used, for the figure's detail
    label: str = ""  # its name in tables, if it is not `name`
    durable: str = ""  # what is safe when a put is confirmed; empty: it is on the disk, by fsync
    lacks: Mapping[str, str] = {}  # "delays", "groups", "backlog", "recovery": why not
    most_batch: int = 1_000_000  # messages of a call
    layouts: Sequence[str] = ()  # ways to lay out a queue, where there are several: the faster one counts
    layout: str = ""  # the one in use
    about_per_s: int = 5_000  # whole lives in batches on two cores, roughly: it sizes the first run alone
    embedded: bool = False  # no process of its own: what it uses, its callers use

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Returns when it answers. Raises Missing."""

    @property
    @abstractmethod
    def address(self) -> str:
        """What a lane in another process is opened with."""

    @abstractmethod
    def fresh(self, queue: str) -> None:
        """Make an empty queue of that name."""

    def fresh_delayed(self, queue: str, delay_s: float) -> None:
        """The same, for puts with that delay."""
        self.fresh(queue)

    def fresh_groups(self, queue: str, groups: Sequence[str]) -> None:
        """The same, where each of some groups gets every message."""
        raise NotImplementedError(f"{self.name} says in `lacks` that it has no groups, or makes them here")

    def queue(self, name: str) -> str:
        """What a queue of that name is called here."""
        return f"{self.layout}_{name}" if self.layout else name

    def version(self) -> str:
        """Of the server, for the page; it is there."""
        return ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def spawn(self, command: Sequence[str], **options: Any) -> None:
        with (self.folder / "output.log").open("ab") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **options)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(DOWN_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def kill(self) -> None:
        """As a crash does: it and all it started, at once. `start` begins again in the same folder."""
        if self.process is not None:
            for pid in family(self.process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:  # it went with its parent
                    continue
            self.process.wait()
            self.process = None

    def until(self, answers: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + UP_WITHIN_S
        while not answers():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise Missing(f"{self.name} did not start: {self._last_words()}")
            time.sleep(0.05)

    def _last_words(self) -> str:
        lines = (self.folder / "output.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class Lane(ABC):
    """A client that belongs to one thread. Handles are whatever `ack` needs.

    `groups` are those of a queue with fan-out: all of them where it puts, the one that it reads for where it gets.
    """

    @abstractmethod
    def __init__(self, address: str, queue: str, groups: Sequence[str] = ()) -> None: ...

    @abstractmethod
    def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None:
        """Durable when it returns."""

    @abstractmethod
    def get(self, most: int) -> list[Got]:
        """Bodies and handles of up to so many messages; may be empty after a short wait."""

    @abstractmethod
    def ack(self, handles: list[Any]) -> None:
        """They are gone for good when it returns."""

    @abstractmethod
    def close(self) -> None: ...


class AsyncLane(ABC):
    """The same for a task of an event loop. Lanes of one process may share a connection, where that is the way."""

    @classmethod
    @abstractmethod
    async def open(
        cls, address: str, queue: str, count: int, groups: Sequence[str] = (), gets: bool = True, batch: int = 1
    ) -> list[AsyncLane]:
        """So many lanes; `gets`: they get, in batches of that size, so that a client may have messages sent ahead."""

    @abstractmethod
    async def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None: ...

    @abstractmethod
    async def get(self, most: int) -> list[Got]: ...

    @abstractmethod
    async def ack(self, handles: list[Any]) -> None: ...

    @abstractmethod
    async def close(self) -> None:
        """Of the first lane closes for all."""


def find(program: str, package: str, places: Sequence[str] = ()) -> str:
    """Where a program is; its package is installed if it can be. Raises Missing."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *places])
    found = shutil.which(program, path=path)
    if found is None:
        with _installing:
            _install(package)
        found = shutil.which(program, path=path)
    if found is None:
        raise Missing(f"{program} is not installed (Debian's package is {package})")
    return found


def _install(package: str) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Missing(f"{package} is not installed, and only root can install it with apt-get")
    # RUNLEVEL: nothing that comes with a service starts it.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    commands = [["apt-get", "-qq", "install", "-y", "--no-install-recommends", package]]
    if not _updated:
        commands.insert(0, ["apt-get", "-qq", "update"])
    for command in commands:
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_WITHIN_S
            )
        except subprocess.TimeoutExpired:
            raise Missing(f"{package} could not be installed: apt-get took too long") from None
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise Missing(f"{package} could not be installed: {' '.join(last)}")
    _updated.append(True)


def said(*command: str) -> str:
    """What a program answers, such as its version."""
    return subprocess.run(command, capture_output=True, text=True, timeout=UP_WITHIN_S).stdout.strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
