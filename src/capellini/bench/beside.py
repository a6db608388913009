"""Capellini beside the queues that a team would otherwise choose: same machine, same run, same work, in turns.

    peers.*    lines of work (beside_lines.py), one run each (beside_runs.py), what was found (beside_results.py),
               and the page with its plots (beside_page.py, beside_plots.py)

All servers run at the same time, on loopback, each in a fresh folder, and are idle while another is measured. In each
repeat every line visits every queue once. A queue that fails in a line has no part in it from then on, and the page
says why; one that cannot be had has no part at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from capellini.bench import beside_page
from capellini.bench.beside_lines import Line, chosen, queues_for, skipped
from capellini.bench.beside_results import Queue, Results, figure
from capellini.bench.beside_runs import Runs, Sample, Scale
from capellini.bench.driving import DriverFailed, Drivers
from capellini.bench.figures import Figure, names
from capellini.bench.peers.beanstalkd import Beanstalkd, BeanstalkdLazy
from capellini.bench.peers.capellini_log import CapelliniLog
from capellini.bench.peers.capellini_node import Capellini, CapelliniFolder
from capellini.bench.peers.elasticmq import Elasticmq
from capellini.bench.peers.embedded_litequeue import Litequeue
from capellini.bench.peers.nats_jetstream import Nats, NatsAlways
from capellini.bench.peers.peer import Missing, Server
from capellini.bench.peers.postgres import Postgres
from capellini.bench.peers.rabbitmq import Rabbitmq
from capellini.bench.peers.redis_streams import Redis

LOG: Final = logging.getLogger(__name__)
SERVERS: Final[tuple[type[Server], ...]] = (
    Capellini, CapelliniLog, CapelliniFolder, Postgres, Redis, Rabbitmq, NatsAlways, Nats, Beanstalkd, BeanstalkdLazy,
    Elasticmq, Litequeue,
)  # fmt: skip
FULL: Final = Scale(repeats=3, put_s=0.6, mixed_s=1.0, pace_s=5.0, backlog=1_000_000, fill_s=15.0, drain_s=15.0)
QUICK: Final = Scale(
    repeats=1, put_s=0.2, mixed_s=0.3, pace_s=1.0, backlog=50_000, fill_s=0.8, drain_s=0.8, all_recover=False
)  # fmt: skip


async def run(quick: bool, only: str | None, page: Path | None = None) -> AsyncIterator[Figure]:
    """The figures that `only` picks. `page`: the folder with benchmarks.md, where all that was found is written to."""
    wanted = names("peers", only)
    # In a thread: it starts processes and waits for them.
    results = await asyncio.to_thread(measure, quick, wanted)
    found = [figure(results, name) for name in wanted]
    if page is not None:
        beside_page.write(page, results, found)
    for each in found:
        yield each


def measure(quick: bool, wanted: Sequence[str]) -> Results:
    scale, lines = QUICK if quick else FULL, chosen(wanted, quick)
    labels = queues_for(wanted, [kind.label for kind in SERVERS])
    began_s, load = time.monotonic(), os.getloadavg()[0]
    with ExitStack() as stack:
        drivers = stack.enter_context(Drivers())
        field = Field([kind for kind in SERVERS if kind.label in labels], drivers, scale, lines)
        stack.callback(field.stop)
        field.start()
        for repeat in range(scale.repeats):
            for line in lines:
                if repeat >= scale.repeats - line.often:  # so that the backlog comes in the end
                    field.turn(line, repeat)
        queues = field.queues()
    return Results(
        when=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        machine=machine(),
        load=(round(load, 1), round(os.getloadavg()[0], 1)),
        quick=quick,
        took_s=round(time.monotonic() - began_s, 1),
        queues=queues,
        samples=tuple(field.samples),
    )


class Field:
    """All queues that take part, and what was measured of them."""

    def __init__(self, kinds: Sequence[type[Server]], drivers: Drivers, scale: Scale, lines: Sequence[Line]) -> None:
        self._kinds, self._drivers, self._scale, self._lines = kinds, drivers, scale, lines
        self._folders = {kind: tempfile.TemporaryDirectory(prefix="capellini-bench-") for kind in kinds}
        self._servers: dict[str, Server] = {}
        self._runs: dict[str, Runs] = {}
        self._missing: dict[str, str] = {}
        self._failed: dict[str, dict[str, str]] = {}
        self.samples: list[Sample] = []

    def start(self) -> None:
        """All at once: some take their time."""
        for kind in self._kinds:
            if not all(skipped(kind, line) for line in self._lines):
                self._servers[kind.label] = kind(Path(self._folders[kind].name))
        with ThreadPoolExecutor(len(self._servers)) as threads:
            starting = {label: threads.submit(server.start) for label, server in self._servers.items()}
        for label, server in self._servers.items():
            try:
                starting[label].result()
                self._runs[label] = Runs(self._drivers, server, self._scale)
                self._runs[label].warm()
            except (Missing, DriverFailed) as error:
                self._missing[label] = str(error)
                LOG.info("%s has no part: %s", label, error)

    def turn(self, line: Line, repeat: int) -> None:
        """This line with every queue that can."""
        for label, server in self._servers.items():
            failed = self._failed.setdefault(label, {})
            if label in self._missing or line.name in failed or skipped(server, line):
                continue
            began_s = time.monotonic()
            try:
                self.samples += self._runs[label].of(line, repeat)
                LOG.info("%s, %s: %.1f s", line.name, label, time.monotonic() - began_s)
            except (DriverFailed, Missing) as error:
                failed[line.name] = str(error)
                LOG.info("%s, %s: %s", line.name, label, error)

    def queues(self) -> tuple[Queue, ...]:
        found = []
        for kind in self._kinds:
            label = kind.label
            why = {line.name: reason for line in self._lines if (reason := skipped(kind, line))}
            missing, failed = self._missing.get(label, ""), self._failed.get(label, {})
            version = "" if missing or label not in self._servers else self._servers[label].version()
            found.append(Queue(label, kind.says, kind.durable, version, missing, {**why, **failed}))
        return tuple(found)

    def stop(self) -> None:
        for server in self._servers.values():
            server.stop()
        for folder in self._folders.values():
            folder.cleanup()


def machine() -> str:
    """What this runs on, in a line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GB, {system}"
