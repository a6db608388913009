"""One measurement of one queue: what each kind of work does with the drivers, and what is read off.

Every run has an empty queue of its own. Server CPU, memory and bytes written are those of the server's process with all
its children; of an embedded queue, of its callers.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from capellini.bench.beside_lines import ALL_OURS, B100, C1, GROUPS, LINES, Line, Shape, skipped
from capellini.bench.driver import Job, Report, Tally
from capellini.bench.driving import DriverFailed, Drivers
from capellini.bench.peers.peer import Server
from capellini.bench.usage import cpu_s, family_memory_mb, written_bytes

ENDLESS: Final = 1_000_000_000  # messages: the time ends it
SLACK_S: Final = 60.0  # for what was under way when the time ended
PATIENCE_S: Final = 5.0  # and three times as long as was put: what consumers have left then does not count
PACE_PER_S: Final = 200.0  # what the slowest of them can do
PACE_WORKERS: Final = 4
DELAY_S: Final = 2.0  # whole seconds: some know nothing else
FANOUT_PROCESSES: Final = 2  # that put, and that get for each group
QUANTILES: Final = (0.5, 0.99, 0.999)


class Scale(msgspec.Struct, frozen=True):
    repeats: int  # at most; a line may want fewer
    put_s: float
    mixed_s: float
    pace_s: float
    backlog: int
    fill_s: float  # no longer than this to fill it
    drain_s: float
    all_recover: bool = True  # not only ours are killed and started again


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measurement. `measure`: put, get, life, late, fill, first, drain."""

    queue: str
    line: str
    measure: str
    repeat: int
    messages: int
    took_s: float
    server_us: float | None = None  # CPU per message
    client_us: float | None = None
    memory_mb: float | None = None  # afterwards; fill: what it grew by
    written_per_byte: float | None = None  # by bodies put
    late_ms: tuple[float, ...] = ()  # QUANTILES

    @property
    def per_s(self) -> float:
        return self.messages / self.took_s


class Runs:
    """Runs of one queue's server. `number` makes names of queues."""

    def __init__(self, drivers: Drivers, server: Server, scale: Scale) -> None:
        self._drivers, self._server, self._scale = drivers, server, scale
        self._number = 0

    def of(self, line: Line, repeat: int) -> list[Sample]:
        work: Callable[[Line, int], list[Sample]] = getattr(self, f"_{line.work}")
        return work(line, repeat)

    def warm(self) -> None:
        """A short run that does not count; it finds the faster layout, too."""
        shape = C1 if skipped(self._server, LINES["mixed_b100_100B"]) else B100
        line, rates = Line("warm", "mixed", shape), {}
        for layout in self._server.layouts or ("",):
            self._server.layout = layout
            rates[layout] = self._mixed(line, 0, self._scale.mixed_s / 4)[0].per_s
        self._server.layout = max(rates, key=lambda layout: rates[layout])

    def _apart(self, line: Line, repeat: int) -> list[Sample]:
        queue = self._fresh(line)
        put, messages = self._put(line, repeat, queue, "put", self._scale.put_s, ENDLESS)
        with self._tally() as tally:
            time_s = patience_s(self._scale.put_s)
            jobs = self._jobs(line, queue, "get", tally, line.shape.processes, messages=messages, within_s=time_s)
            got, _ = self._measured(line, repeat, "get", jobs)
        return [put, got]

    def _put(self, line: Line, repeat: int, queue: str, measure: str, within_s: float, most: int) -> tuple[Sample, int]:
        with self._tally() as tally:
            share = most // line.shape.processes
            jobs = self._jobs(line, queue, "put", tally, line.shape.processes, messages=share, within_s=within_s)
            sample, reports = self._measured(line, repeat, measure, jobs)
        return sample, sum(report.messages for report in reports)

    def _mixed(self, line: Line, repeat: int, within_s: float | None = None) -> list[Sample]:
        queue, time_s = self._fresh(line), within_s or self._scale.mixed_s
        with self._tally() as tally, self._tally() as puts:
            if line.shape.processes == 1:
                jobs = self._jobs(line, queue, "life", tally, 1, messages=ENDLESS, within_s=time_s)
            else:
                half = line.shape.processes // 2
                jobs = self._jobs(line, queue, "put", tally, half, messages=ENDLESS, within_s=time_s, puts=puts)
                jobs += self._jobs(line, queue, "get", tally, half, puts=puts, within_s=patience_s(time_s))
            return [self._measured(line, repeat, "life", jobs)[0]]

    def _fanout(self, line: Line, repeat: int) -> list[Sample]:
        queue = self._name()
        self._server.fresh_groups(queue, GROUPS)
        each = FANOUT_PROCESSES
        with self._tally() as first, self._tally() as second, self._tally() as third, self._tally() as puts:
            time_s = self._scale.mixed_s
            jobs = self._jobs(
                line, queue, "put", first, each, messages=ENDLESS, within_s=time_s, puts=puts, groups=GROUPS
            )
            for group, tally in zip(GROUPS, (first, second, third), strict=True):
                jobs += self._jobs(
                    line, queue, "get", tally, each, puts=puts, groups=(group,), within_s=patience_s(time_s)
                )
            return [self._measured(line, repeat, "life", jobs)[0]]

    def _pace(self, line: Line, repeat: int) -> list[Sample]:
        return self._paced(line, repeat, self._fresh(line), 0.0)

    def _delayed(self, line: Line, repeat: int) -> list[Sample]:
        queue = self._name()
        self._server.fresh_delayed(queue, DELAY_S)
        return self._paced(line, repeat, queue, DELAY_S)

    def _paced(self, line: Line, repeat: int, queue: str, delay_s: float) -> list[Sample]:
        paced = Line(line.name, line.work, Shape("pace", "", 1, 2, PACE_WORKERS), line.body_bytes)
        messages = round(PACE_PER_S * self._scale.pace_s)
        with self._tally() as tally:
            jobs = self._jobs(
                paced, queue, "pace", tally, 1, messages=messages, per_s=PACE_PER_S, delay_s=delay_s
            ) + self._jobs(paced, queue, "get", tally, 1, messages=messages, noting=True)
            sample, reports = self._measured(paced, repeat, "late", jobs)
        late_ms = sorted(each for report in reports for each in report.late_ms)
        return [msgspec.structs.replace(sample, late_ms=tuple(quantile(late_ms, part) for part in QUANTILES))]

    def _backlog(self, line: Line, repeat: int) -> list[Sample]:
        queue, server, scale = self._fresh(line), self._server, self._scale
        before_mb = self._memory_mb()
        fill, messages = self._put(line, repeat, queue, "fill", scale.fill_s, scale.backlog)
        samples = [msgspec.structs.replace(fill, memory_mb=max(0.0, self._memory_mb() - before_mb))]
        if "recovery" not in server.lacks and (scale.all_recover or server.label in ALL_OURS):
            server.kill()
            began_s = time.monotonic()
            server.start()
            with self._tally() as tally:
                single = Line(line.name, line.work, Shape("first", "", 1, 1, 1), line.body_bytes)
                jobs = self._jobs(single, queue, "first", tally, 1)
                _, reports = self._measured(single, repeat, "first", jobs)
            samples.append(Sample(server.label, line.name, "first", repeat, 1, reports[0].ended_s - began_s))
            messages -= reports[0].messages
        with self._tally() as tally:
            count = line.shape.processes
            jobs = self._jobs(line, queue, "get", tally, count, messages=messages, within_s=scale.drain_s)
            samples.append(self._measured(line, repeat, "drain", jobs)[0])
        return samples

    def _name(self) -> str:
        self._number += 1
        return self._server.queue(f"run{self._number}")

    def _fresh(self, line: Line) -> str:
        queue = self._name()
        self._server.fresh(queue)
        return queue

    def _tally(self) -> tempfile._TemporaryFileWrapper[bytes]:
        return tempfile.NamedTemporaryFile(prefix="capellini-bench-")

    def _jobs(
        self, line: Line, queue: str, role: str, tally: Any, processes: int, puts: Any = None, **more: Any
    ) -> list[Job]:
        workers = line.shape.workers
        Tally.make(Path(tally.name), max(processes * workers, 1))
        if puts is not None and role == "put":
            Tally.make(Path(puts.name), processes)
        common = {
            "peer": self._server.name, "address": self._server.address, "queue": queue, "role": role,
            "batch": min(line.shape.batch, self._server.most_batch), "workers": workers, "tally": tally.name,
            "body_bytes": line.body_bytes, "incompressible": True, "messages": 0,
            "puts": puts.name if puts is not None else "", **more,
        }  # fmt: skip
        step = 1 if role == "put" else workers  # producers count by process
        return [msgspec.convert({**common, "first_slot": index * step}, Job) for index in range(processes)]

    def _measured(self, line: Line, repeat: int, measure: str, jobs: Sequence[Job]) -> tuple[Sample, list[Report]]:
        server, used = self._server, [0.0, 0.0]
        longest_s = max(job.within_s for job in jobs) + SLACK_S

        def before() -> None:
            if not server.embedded:
                used[:] = cpu_s(server.pid), written_bytes(server.pid)

        began_s, reports = self._drivers.run(jobs, before, longest_s)
        client_s = sum(report.cpu_s for report in reports)
        if server.embedded:
            server_s, written = 0.0, float(sum(report.written for report in reports))
        else:
            server_s, written = cpu_s(server.pid) - used[0], written_bytes(server.pid) - used[1]
        put, messages = counted(jobs, reports)
        if not messages:
            raise DriverFailed(f"no message in {line.name}")
        sample = Sample(
            server.label, line.name, measure, repeat, messages,
            took_s=max(report.ended_s for report in reports) - began_s,
            server_us=None if server.embedded else server_s / messages * 1e6,
            client_us=client_s / messages * 1e6,
            memory_mb=self._memory_mb() or None,
            written_per_byte=written / (put * line.body_bytes) if put else None,
        )  # fmt: skip
        return sample, reports

    def _memory_mb(self) -> float:
        return 0.0 if self._server.embedded else family_memory_mb(self._server.pid)


def patience_s(time_s: float) -> float:
    """How long consumers may take for what is put in that time."""
    return 3 * time_s + PATIENCE_S


def counted(jobs: Sequence[Job], reports: Sequence[Report]) -> tuple[int, int]:
    """Messages put, and messages that count: those acked (by every group) where there are consumers."""
    told = list(zip(jobs, reports, strict=True))
    put = sum(report.messages for job, report in told if job.role in ("put", "pace", "life"))
    acked = sum(report.messages for job, report in told if job.role in ("get", "first", "life"))
    groups = {job.groups for job, _ in told if job.role == "get"}
    return put, acked // max(1, len(groups)) if acked or groups else put


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest that at least this part of them does not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * part) - 1)] if ordered else 0.0
