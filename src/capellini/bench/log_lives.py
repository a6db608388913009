"""Whole lives of messages of a log queue on the embedded store: producers and consumers at the same time.

    life_vs_postgres     the same drivers on PostgreSQL as on a log queue, in turns; the median of the turns' ratios
    second_group_cost    what the node spends on a message's life with two groups, beyond that with one

The node's CPU is what a second group costs: the clients of a group are its own, wherever they run. What both groups'
clients use is in the details, and so is the time.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from capellini.bench import driving
from capellini.bench.driver import Job, Tally
from capellini.bench.driving import DriverFailed, Drivers, Run
from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.bench.peers import postgres
from capellini.bench.peers.capellini_log import CapelliniLog
from capellini.bench.peers.peer import Missing, Server
from capellini.bench.usage import cpu_s, memory_mb
from capellini.bench.work_peers import Running, in_faster_layout

VS_POSTGRES: Final = "log.rocks.life_vs_postgres"
SECOND: Final = "log.rocks.second_group_cost"
GROUPS: Final = ("first", "second")
WITHIN_S: Final = 300.0


class Scale(msgspec.Struct, frozen=True):
    turns: int
    ours: int  # messages of a turn
    theirs: int
    group_messages: int
    group_batch: int = 500
    group_workers: int = 4


FULL: Final = Scale(turns=5, ours=800_000, theirs=150_000, group_messages=1_000_000)
QUICK: Final = Scale(turns=3, ours=200_000, theirs=40_000, group_messages=300_000)


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    # In a thread: it starts processes and waits for them.
    return await asyncio.to_thread(measure, QUICK if quick else FULL, wanted)


def measure(scale: Scale, wanted: list[str]) -> list[Figure]:
    made: dict[str, Figure] = {}
    with ExitStack() as stack:
        ours = stack.enter_context(Running(CapelliniLog)).start()
        for name in wanted:
            try:
                made[name] = _beside(scale, stack, ours) if name == VS_POSTGRES else _groups(scale, ours)
            except (Missing, DriverFailed) as error:
                made[name] = unmeasured(name, str(error))
    return [made[name] for name in wanted]


def _beside(scale: Scale, stack: ExitStack, ours: Server) -> Figure:
    theirs = stack.enter_context(Running(postgres.Postgres)).start()
    layouts = dict.fromkeys(postgres.LAYOUTS, 0.0)
    mine: list[Run] = []
    other: list[Run] = []
    for turn in range(scale.turns + 1):
        part = 4 if turn == 0 else 1  # it warms both up, and finds the faster layout
        found = driving.drive(ours, f"life{turn}", driving.B100, scale.ours // part)
        beside = in_faster_layout(theirs, turn, driving.B100, scale.theirs // part, layouts)
        if turn:
            mine.append(found)
            other.append(beside)
    ratios = [a.per_s / b.per_s for a, b in zip(mine, other, strict=True)]
    detail: Detail = {
        "ratios": [round(each, 2) for each in ratios],
        "per_s": round(median(each.per_s for each in mine)),
        "postgres_per_s": round(median(each.per_s for each in other)),
        "server_us": round(median(each.server_us for each in mine), 2),
        "client_us": round(median(each.client_us for each in mine), 2),
        "drivers": f"{driving.PRODUCERS} processes put, {driving.CONSUMERS} get and ack, "
        f"{driving.B100.workers} batches of {driving.B100.batch} each",
        "postgres": theirs.says,
    }
    return judge(VS_POSTGRES, median(ratios), detail)


def _groups(scale: Scale, ours: Server) -> Figure:
    one: list[Run] = []
    two: list[Run] = []
    with Drivers() as drivers:
        for turn in range(scale.turns + 1):
            first = _life(scale, drivers, ours, f"one{turn}", GROUPS[:1])
            both = _life(scale, drivers, ours, f"two{turn}", GROUPS)
            if turn:
                one.append(first)
                two.append(both)
    costs = [b.server_us / a.server_us - 1 for a, b in zip(one, two, strict=True)]
    detail: Detail = {
        "costs": [round(each, 2) for each in costs],
        "one_group_server_us": round(median(each.server_us for each in one), 2),
        "two_groups_server_us": round(median(each.server_us for each in two), 2),
        "one_group_client_us": round(median(each.client_us for each in one), 2),
        "two_groups_client_us": round(median(each.client_us for each in two), 2),
        "one_group_per_s": round(median(each.per_s for each in one)),
        "two_groups_per_s": round(median(each.per_s for each in two)),
    }
    return judge(SECOND, median(costs), detail)


def _life(scale: Scale, drivers: Drivers, server: Server, queue: str, groups: tuple[str, ...]) -> Run:
    """One process puts, one gets and acks for each group."""
    server.fresh_groups(queue, groups)
    workers, messages = scale.group_workers, scale.group_messages
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        tallies = {group: Path(folder) / group for group in groups}
        for tally in tallies.values():
            Tally.make(tally, workers)
        common = {"peer": server.name, "address": server.address, "queue": queue, "batch": scale.group_batch}
        jobs = [
            msgspec.convert(
                {**common, "role": role, "workers": workers, "messages": messages, "tally": str(tallies[group]),
                 "first_slot": 0, "groups": (group,) if role == "get" else ()},
                Job,
            )
            for role, group in (("put", groups[0]), *(("get", group) for group in groups))
        ]  # fmt: skip
        used: list[float] = []
        began_s, reports = drivers.run(jobs, lambda: used.append(cpu_s(server.pid)), WITHIN_S)
        server_cpu_s = cpu_s(server.pid) - used[0]
    took_s = max(report.ended_s for report in reports) - began_s
    return Run(messages, took_s, server_cpu_s, sum(report.cpu_s for report in reports), memory_mb(server.pid))
