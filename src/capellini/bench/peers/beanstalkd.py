"""beanstalkd by greenstalk: one message per call, there is nothing else. Its log is synced at every write, or (as it
comes) every 50 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import greenstalk

from capellini.bench.peers.peer import Got, Lane, Server, accepts, find, free_port, said

TIME_TO_RUN_S: Final = 600  # nothing comes back by itself while it is measured
WAIT_S: Final = 1  # it knows whole seconds only
MOST_BODY_BYTES: Final = 1_000_000


class Beanstalkd(Server):
    name = "beanstalkd"
    label = "beanstalkd"
    says = "beanstalkd -f0 (fsync at every write), greenstalk, one message a call"
    lacks: Mapping[str, str] = {"groups": "a job goes to one tube and one worker"}
    most_batch = 1
    about_per_s = 2_000
    sync_ms = 0
    port = 0

    def start(self) -> None:
        program = find("beanstalkd", "beanstalkd")
        self.port = self.port or free_port()
        log = self.folder / "log"
        log.mkdir(exist_ok=True)
        where = ["-l", "127.0.0.1", "-p", str(self.port), "-b", str(log), "-z", str(MOST_BODY_BYTES)]
        self.spawn([program, *where, f"-f{self.sync_ms}"])
        self.until(lambda: accepts(self.port))

    def version(self) -> str:
        return said(find("beanstalkd", "beanstalkd"), "-v").split()[-1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def fresh(self, queue: str) -> None:
        """A tube is there when it is used."""


class BeanstalkdLazy(Beanstalkd):
    label = "beanstalkd, 50 ms"
    says = "beanstalkd -f50 (fsync every 50 ms), greenstalk, one message a call"
    durable = "up to 50 ms of puts are lost with the machine"
    about_per_s = 5_000
    sync_ms = 50


class BeanstalkdLane(Lane):
    def __init__(self, address: str, queue: str, groups: Sequence[str] = ()) -> None:
        host, _, port = address.partition(":")
        self._client: Any = greenstalk.Client((host, int(port)), encoding=None, use=queue, watch=queue)

    def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None:
        for body in bodies:
            self._client.put(body, ttr=TIME_TO_RUN_S, delay=round(delay_s))

    def get(self, most: int) -> list[Got]:
        try:
            job = self._client.reserve(timeout=WAIT_S)
        except greenstalk.TimedOutError:
            return []
        return [(job.body, job)]

    def ack(self, handles: list[Any]) -> None:
        for job in handles:
            self._client.delete(job)

    def close(self) -> None:
        self._client.close()
