"""The embedded node beside the usual queues: same drivers, same messages, everything durable before it is confirmed.

    b100   batches of 100, 32 workers in all             PostgreSQL (rate), Redis (server CPU)
    c32    single messages, 32 workers in all            beanstalkd (rate)

All sides run in turns, so that what else the machine does hits them alike; the median of the turns' ratios counts.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from capellini.bench import driving
from capellini.bench.driving import DriverFailed, Run, Shape
from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.bench.peers import beanstalkd, capellini_node, postgres, redis_streams
from capellini.bench.peers.peer import Missing, Server

VS_POSTGRES: Final = "work.rocks.b100.vs_postgres"
CPU_VS_REDIS: Final = "work.rocks.b100.cpu_vs_redis"
VS_BEANSTALKD: Final = "work.rocks.c32.vs_beanstalkd_fsync"
PEERS: Final[dict[str, tuple[type[Server], Shape]]] = {
    VS_POSTGRES: (postgres.Postgres, driving.B100),
    CPU_VS_REDIS: (redis_streams.Redis, driving.B100),
    VS_BEANSTALKD: (beanstalkd.Beanstalkd, driving.C32),
}


class Scale(msgspec.Struct, frozen=True):
    turns: int
    b100: int  # messages of a turn, on each side
    c32: int


FULL: Final = Scale(turns=7, b100=100_000, c32=12_000)
QUICK: Final = Scale(turns=3, b100=40_000, c32=3_000)


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    # In a thread: it starts processes and waits for them.
    return await asyncio.to_thread(measure, QUICK if quick else FULL, wanted)


def measure(scale: Scale, wanted: list[str]) -> list[Figure]:
    made: dict[str, Figure] = {}
    for shape, messages in ((driving.B100, scale.b100), (driving.C32, scale.c32)):
        names = [name for name in wanted if PEERS[name][1] == shape]
        if not names:
            continue
        with ExitStack() as stack:
            ours = stack.enter_context(Running(capellini_node.Capellini)).start()
            others: dict[str, Server] = {}
            for name in names:
                try:
                    others[name] = stack.enter_context(Running(PEERS[name][0])).start()
                except Missing as error:
                    made[name] = unmeasured(name, str(error))
            made |= _turns(scale, shape, messages, ours, others)
    return [made[name] for name in wanted]


def _turns(scale: Scale, shape: Shape, messages: int, ours: Server, others: dict[str, Server]) -> dict[str, Figure]:
    our_runs: list[Run] = []
    runs: dict[str, list[Run]] = {name: [] for name in others}
    failed: dict[str, str] = {}
    layouts = dict.fromkeys(postgres.LAYOUTS, 0.0)
    for turn in range(scale.turns + 1):
        first = turn == 0  # it warms all up, and finds the faster layout
        share = messages // 4 if first else messages
        mine = driving.drive(ours, f"turn{turn}", shape, share)
        if not first:
            our_runs.append(mine)
        for name, server in others.items():
            if name in failed:
                continue
            try:
                if server.name == "postgres":
                    found = in_faster_layout(server, turn, shape, share, layouts)
                else:
                    found = driving.drive(server, f"turn{turn}", shape, share)
            except DriverFailed as error:
                failed[name] = str(error)
                continue
            if not first:
                runs[name].append(found)
    few = _with_few(ours, others, messages, layouts) if VS_POSTGRES in runs and VS_POSTGRES not in failed else None
    return {
        name: unmeasured(name, failed[name])
        if name in failed
        else _figure(name, server, our_runs, runs[name], layouts, few)
        for name, server in others.items()
    }


def _with_few(ours: Server, others: dict[str, Server], messages: int, layouts: dict[str, float]) -> float:
    """The ratio of rates with one batch under way per process: for the details."""
    mine = driving.drive(ours, "few", driving.B100_FEW, messages)
    best = max(layouts, key=lambda layout: layouts[layout])
    return mine.per_s / driving.drive(others[VS_POSTGRES], f"{best}_few", driving.B100_FEW, messages).per_s


def in_faster_layout(server: Server, turn: int, shape: Shape, messages: int, layouts: dict[str, float]) -> Run:
    """At first both layouts, then the one that was faster."""
    if turn:
        best = max(layouts, key=lambda layout: layouts[layout])
        return driving.drive(server, f"{best}_{turn}", shape, messages)
    runs = {layout: driving.drive(server, f"{layout}_{turn}", shape, messages) for layout in layouts}
    for layout, run in runs.items():
        layouts[layout] = run.per_s
    return max(runs.values(), key=lambda run: run.per_s)


def _figure(
    name: str, server: Server, ours: list[Run], theirs: list[Run], layouts: dict[str, float], few: float | None = None
) -> Figure:
    ratio: Callable[[Run, Run], float] = _cpu_ratio if name == CPU_VS_REDIS else _rate_ratio
    ratios = [ratio(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    detail: Detail = {
        "ratios": [round(each, 2) for each in ratios],
        "messages": ours[0].messages,
        "drivers": f"{driving.PRODUCERS} processes put, {driving.CONSUMERS} get and ack, {PEERS[name][1].workers} each",
        "per_s": round(median(run.per_s for run in ours)),
        "peer_per_s": round(median(run.per_s for run in theirs)),
        "server_us": round(median(run.server_us for run in ours), 2),
        "peer_server_us": round(median(run.server_us for run in theirs), 2),
        "client_us": round(median(run.client_us for run in ours), 2),
        "peer_client_us": round(median(run.client_us for run in theirs), 2),
        "server_memory_mb": ours[-1].memory_mb,
        "peer": server.says,
    }
    if server.name == "postgres":
        detail["layouts_per_s"] = {layout: round(rate) for layout, rate in layouts.items()}
        detail["ratio_with_8_under_way"] = None if few is None else round(few, 2)
    return judge(name, median(ratios), detail)


def _rate_ratio(mine: Run, other: Run) -> float:
    return mine.per_s / other.per_s


def _cpu_ratio(mine: Run, other: Run) -> float:
    return mine.server_cpu_s / other.server_cpu_s


class Running:
    """A server in a folder of its own, stopped and removed in the end."""

    def __init__(self, kind: type[Server]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="capellini-bench-")
        self._server = kind(Path(self._folder.name))

    def start(self) -> Server:
        self._server.start()
        return self._server

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._folder.cleanup()
