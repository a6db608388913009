"""The highest rates of log queues on the embedded store: puts alone, then gets and acks alone, through streams.

    producers' processes ─▶ node ─▶ folder        put_per_s: from the first put to the last confirmation
    node ─▶ consumers' processes                  get_ack_per_s: of one group, from the first get to the last ack

Bodies are random, so that nothing is gained by compression. Bytes written to the disk are those that the kernel counts
for the node, from the creation of the queue until all is put, acked, and out of RocksDB's log.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from capellini.bench.driver import BODY_BYTES, Job, Report, Tally
from capellini.bench.driving import DriverFailed, Drivers
from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.bench.peers.capellini_log import CapelliniLog
from capellini.bench.usage import cpu_s, memory_mb, written_bytes

PUT: Final = "log.rocks.put_per_s"
GET: Final = "log.rocks.get_ack_per_s"
DISK: Final = "log.rocks.disk_bytes_per_byte"
WITHIN_S: Final = 300.0


class Scale(msgspec.Struct, frozen=True):
    turns: int
    messages: int
    processes: int = 2
    workers: int = 4  # batches under way, in each process
    batch: int = 1_000


FULL: Final = Scale(turns=5, messages=4_000_000)
QUICK: Final = Scale(turns=3, messages=1_000_000)


class Half(msgspec.Struct, frozen=True):
    """Puts, or gets and acks, of so many messages."""

    messages: int
    took_s: float
    server_cpu_s: float
    client_cpu_s: float
    written: int

    @property
    def per_s(self) -> float:
        return self.messages / self.took_s

    def detail(self) -> Detail:
        return {
            "per_s": round(self.per_s),
            "server_us": round(self.server_cpu_s / self.messages * 1e6, 2),
            "client_us": round(self.client_cpu_s / self.messages * 1e6, 2),
        }


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    # In a thread: it starts processes and waits for them.
    return await asyncio.to_thread(measure, QUICK if quick else FULL, wanted)


def measure(scale: Scale, wanted: list[str]) -> list[Figure]:
    puts: list[Half] = []
    gets: list[Half] = []
    try:
        with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder, Drivers() as drivers:
            server = CapelliniLog(Path(folder))
            server.start()
            try:
                for turn in range(scale.turns + 1):
                    server.fresh(f"rate{turn}")
                    count = scale.messages // (10 if turn == 0 else 1)
                    put = half(server, drivers, f"rate{turn}", scale, "put", count)
                    got = half(server, drivers, f"rate{turn}", scale, "get", count)
                    if turn:  # the first one warms both sides up
                        puts.append(put)
                        gets.append(got)
                memory = memory_mb(server.pid)
            finally:
                server.stop()
    except DriverFailed as error:
        return [unmeasured(name, str(error)) for name in wanted]
    shape = f"{scale.processes} processes, {scale.workers} batches of {scale.batch} under way in each"
    made: dict[str, Figure] = {}
    for name, halves in ((PUT, puts), (GET, gets)):
        middle = sorted(halves, key=lambda each: each.per_s)[len(halves) // 2]
        detail: Detail = {**middle.detail(), "all": [round(each.per_s) for each in halves], "drivers": shape}
        made[name] = judge(name, median(each.per_s for each in halves), detail)
    received = sum(each.messages for each in puts) * BODY_BYTES
    written = sum(each.written for each in (*puts, *gets))
    made[DISK] = judge(
        DISK,
        written / received,
        {"received_mb": received // 10**6, "written_mb": written // 10**6, "memory_mb": memory},
    )
    return [made[name] for name in wanted]


def half(server: CapelliniLog, drivers: Drivers, queue: str, scale: Scale, role: str, messages: int) -> Half:
    """Puts or gets of all messages, by processes that do nothing else."""
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        tally = Path(folder) / "acked"
        Tally.make(tally, scale.processes * scale.workers)
        share = messages // scale.processes
        jobs = [
            Job(
                peer=server.name,
                address=server.address,
                queue=queue,
                role=role,
                batch=scale.batch,
                workers=scale.workers,
                messages=share if role == "put" else share * scale.processes,
                tally=str(tally),
                first_slot=index * scale.workers,
                incompressible=True,
            )
            for index in range(scale.processes)
        ]
        before: list[float] = []
        written = written_bytes(server.pid)
        began_s, reports = drivers.run(jobs, lambda: before.append(cpu_s(server.pid)), WITHIN_S)
        used_s = cpu_s(server.pid) - before[0]
    return Half(
        share * scale.processes,
        max(report.ended_s for report in reports) - began_s,
        used_s,
        _client_s(reports),
        written_bytes(server.pid) - written,
    )


def _client_s(reports: list[Report]) -> float:
    return sum(report.cpu_s for report in reports)
