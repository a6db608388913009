"""Figures: what a benchmark says, and the bar each is held against.

    suite ──▶ Figure(name, value, detail) ──▶ judged against BARS ──▶ JSON lines, or a table with bars to look at

A bar is text such as `>= 0.6` or `<= 2 (aim 1)`: a comparison, a number, and perhaps a remark. A figure that could not
be measured has no value and a reason in its detail; it does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

BARS: Final[Mapping[str, str]] = {
    "store.rocks.sync_write_b100_vs_bare": ">= 0.6",
    "store.rocks.scan_vs_bare": ">= 0.4",
    "store.rocks.writes_per_fsync_1000_tasks": ">= 50",
    "store.cassandra.write_b100_vs_bare": ">= 0.8",
    "store.cassandra.rounds_per_cas_200_rows": "<= 1",
    "store.simulated.virtual_s_per_s": ">= 500",
    "work.cassandra.b100.rounds": "<= 0.04",
    "work.cassandra.b100.requests": "<= 0.1",
    "work.cassandra.c64.rounds": "<= 0.4",
    "work.cassandra.serial.rounds": "<= 3.1",
    "work.cassandra.serial.requests": "<= 6.2",
    "work.cassandra.four_nodes_b100.rounds": "<= 0.15",
    "work.simulated.eight_nodes_speedup": ">= 5",
    "work.cost_after_1M_consumed": "<= 1.1",
    "work.cost_with_5M_unread": "<= 1.1",
    "work.cassandra.tombstones_per_read": "<= 1",
    "work.rocks.b100.vs_postgres": ">= 3",
    "work.rocks.b100.cpu_vs_redis": "<= 2 (aim 1)",
    "work.rocks.c32.vs_beanstalkd_fsync": ">= 1",
    "timed.rocks.late_p99_ms": "<= 250",
    "timed.cassandra.late_p99_ms": "<= 500",
    "timed.rocks.idle_then_300ms_late_p99_ms": "<= 250",
    "timed.cassandra.put_b100.requests": "<= 0.05",
    "timed.cassandra.put_b100.rounds": "<= 0.001",
    "timed.cassandra.get_ack.requests": "<= 0.1",
    "timed.late_with_5M_scheduled": "<= 1.1",
    "timed.put_with_5M_scheduled": "<= 1.1",
    "timed.idle_reads_per_shard_s": "<= 1",
    "log.rocks.put_per_s": ">= 200000",
    "log.rocks.get_ack_per_s": ">= 200000",
    "log.rocks.life_vs_postgres": ">= 5",
    "log.rocks.second_group_cost": "<= 0.5",
    "log.rocks.disk_bytes_per_byte": "<= 2.4",
    "log.cassandra.put.rounds": "<= 0.001",
    "log.cassandra.put.requests": "<= 0.005",
    "log.cassandra.get_ack.requests": "<= 0.02",
    "log.cassandra.put_bytes_vs_bare": ">= 0.5",
    "log.rocks.latency_p99_ms_at_1000_per_s": "<= 20",
    "log.rocks.old_position_cost": "<= 2",
    "log.journal_cost": "<= 0.05",
    "counters.add_many_per_s": ">= 1000000",
    "counters.api_per_s": ">= 100000",
    "counters.cassandra.requests_per_update": "<= 0.01",
    "counters.reads_per_read_1000_shards": "<= 1",
    "pipeline.source_node_vs_bare": ">= 0.6",
    "pipeline.source_folder_vs_bare": ">= 0.6",
    "pipeline.sink_per_s": ">= 300000",
    "pipeline.cassandra_source_vs_bare": ">= 0.5",
    "pipeline.audit_20M_s": "<= 180",
    "pipeline.audit_cost_20M_vs_2M": "<= 1.5",
    "peers.mixed_b100_vs_best": ">= 3",
    "peers.fanout3_vs_best": ">= 1.5",
    "peers.backlog_1M_vs_best": ">= 1.5",
    "peers.single_c1_vs_best": ">= 0.67",
    "peers.single_c32_vs_best": ">= 0.67",
    "peers.cpu_b100_vs_redis": "<= 2 (aim 1)",
    "peers.recovery_1M_s": "<= 3",
}

CHART_WIDTH: Final = 10  # characters; the bar itself stands in the middle. All fits into 80 columns
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": lambda value, wanted: value >= wanted,
    "<=": lambda value, wanted: value <= wanted,
}

Detail = dict[str, object]


class Figure(msgspec.Struct, frozen=True):
    """One line of a benchmark. Made by `judge` or `unmeasured`, so that it is always held against its bar."""

    figure: str
    value: float | None
    bar: str
    holds: bool
    detail: Detail


def judge(name: str, value: float, detail: Detail | None = None) -> Figure:
    """A measured figure. Its name must be one of BARS."""
    compare, wanted = bar_of(name)
    holds = math.isfinite(value) and _COMPARE[compare](value, wanted)
    return Figure(name, rounded(value) if math.isfinite(value) else None, BARS[name], holds, detail or {})


def unmeasured(name: str, reason: str) -> Figure:
    """A figure that could not be had here."""
    return Figure(name, None, BARS[name], False, {"reason": reason})


def bar_of(name: str) -> tuple[str, float]:
    """The comparison and the number of a figure's bar."""
    compare, number, *_ = BARS[name].split()
    return compare, float(number)


def names(suite: str, only: str | None = None) -> list[str]:
    """The figures of a suite that begin with `only`, which may leave out the suite's own name."""
    mine = [name for name in BARS if name.startswith(f"{suite}.")]
    return [name for name in mine if not only or name.startswith((only, f"{suite}.{only}"))]


def rounded(value: float) -> float:
    """Four digits that mean something."""
    return float(f"{value:.4g}")


def as_json_line(figure: Figure) -> str:
    return msgspec.json.encode(figure).decode()


def as_page(figures: Iterable[Figure]) -> Group:
    """To look at: green holds, red does not, and a chart of how far each is from its bar (the middle); below the table
    how each came about."""
    grid = Grid(header_style="bold", box=None, pad_edge=False)
    grid.add_column("figure", overflow="fold")
    grid.add_column("value", justify="right", no_wrap=True)
    grid.add_column("bar", no_wrap=True)
    grid.add_column("", no_wrap=True)
    details: list[RenderableType] = []
    for figure in figures:
        style = "yellow" if figure.value is None else "green" if figure.holds else "red"
        shown = "not measured" if figure.value is None else f"{figure.value:,g}"
        grid.add_row(figure.figure, Text(shown, style), figure.bar, Text(chart(figure), style))
        detail = ", ".join(f"{name} {_short(value)}" for name, value in figure.detail.items())
        if detail:
            details += [Text(f"\n{figure.figure}"), Padding(Text(detail, "dim"), (0, 0, 0, 2))]
    return Group(grid, *details)


def chart(figure: Figure) -> str:
    """How good a figure is: half full at its own bar, full at twice as good (ratios, so that all compare)."""
    _, wanted = bar_of(figure.figure)
    if figure.value is None:
        return ""
    more_is_better = figure.bar.startswith(">=")
    if not more_is_better and figure.value == 0:
        goodness = 2.0
    else:
        goodness = figure.value / wanted if more_is_better else wanted / figure.value
    filled = round(CHART_WIDTH / 2 * min(max(goodness, 0.0), 2.0))
    return "█" * filled + "░" * (CHART_WIDTH - filled)


def _short(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
