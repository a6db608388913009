"""beanstalkd with its log synced at every write, by greenstalk: one message per call, there is nothing else."""

from __future__ import annotations

from typing import Any, Final

import greenstalk

from capellini.bench.peers.peer import Lane, Server, accepts, find, free_port

TIME_TO_RUN_S: Final = 600  # nothing comes back by itself while it is measured
WAIT_S: Final = 1  # it knows whole seconds only


class Beanstalkd(Server):
    name = "beanstalkd"
    says = "beanstalkd -f0 (fsync at every write), greenstalk"
    batches = (1,)

    def start(self) -> None:
        program = find("beanstalkd", "beanstalkd")
        self.port = free_port()
        self.spawn([program, "-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.folder), "-f0"])
        self.until(lambda: accepts(self.port))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def fresh(self, queue: str) -> None:
        """A tube is there when it is used."""


class BeanstalkdLane(Lane):
    def __init__(self, address: str, queue: str) -> None:
        host, _, port = address.partition(":")
        self._client: Any = greenstalk.Client((host, int(port)), encoding=None, use=queue, watch=queue)

    def put(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self._client.put(body, ttr=TIME_TO_RUN_S)

    def get(self, most: int) -> list[Any]:
        try:
            return [self._client.reserve(timeout=WAIT_S)]
        except greenstalk.TimedOutError:
            return []

    def ack(self, handles: list[Any]) -> None:
        for job in handles:
            self._client.delete(job)

    def close(self) -> None:
        self._client.close()
