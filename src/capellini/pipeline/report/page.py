"""The page: plots drawn as SVG in the page itself, tables below them. One file, nothing to fetch, light and dark.

    queue ──▶ rates · depth · wait quantiles · redeliveries, one small plot each, hours from left to right

All plots have the same hours, from the first of the journal to its last: what stood still for a night is seen to. An
hour without an event has rates of nothing, the depth of the hour before, and no waits: a gap in the line.

Waits are drawn on a scale of powers of ten: medians of milliseconds and a bad hour's seconds are both to be read.
"""

from __future__ import annotations

import datetime
import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from capellini.pipeline.report.tables import QUANTILES, Report

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 560, 180, 52, 26, 14, 10
MOST_HOURS: Final = 24 * 366  # beyond them hours without an event are left out
LABELS: Final = 4  # pieces of the axis of hours, each with its hour at its ends
LEAST_S: Final = 1e-4  # waits below that are all alike
COLOURS: Final = ("#2f6fde", "#d9822b", "#2d9d78", "#b3446c", "#7a5cc9")
Row = dict[str, Any]
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #6b7886; --line: #d9dfe5; --card: #fff; --page: #f4f6f8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --soft: #93a0ad; --line: #37424d; --card: #1d252d; --page: #141a20 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto; padding: 24px;
  max-width: 1340px }
h1 { font-size: 22px } h2 { font-size: 18px; margin: 32px 0 8px }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 14px }
svg { width: 100%; height: auto; display: block }
figure, table { background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: 0 }
figure { padding: 10px 12px } figcaption { font-weight: 600; margin-bottom: 2px }
.key { color: var(--soft); font-size: 13px }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 4px 0 10px }
table { border-collapse: collapse; margin-top: 12px; font-size: 13px } th, td { padding: 4px 10px; text-align: right }
th { color: var(--soft); font-weight: 600 } td:first-child, th:first-child { text-align: left }
tr + tr td { border-top: 1px solid var(--line) } text { fill: var(--soft); font-size: 11px }
"""


def page(report: Report, title: str) -> str:
    """The whole page."""
    of_hours, of_waits = _by_queue(report.hours), _by_queue(report.waits)
    hours = all_hours([row["hour"] for row in (*report.hours, *report.waits)])
    parts = [f"<h1>{html.escape(title)}</h1>", _span(hours), _overview(of_hours, of_waits)]
    for queue in sorted(of_hours):
        parts.append(_queue(queue, hours, of_hours[queue], of_waits.get(queue, [])))
    if report.poison:
        named = [{**row, "generation": str(row["generation"])} for row in report.poison]  # a name, not a quantity
        parts.append("<h2>Delivered most often</h2>" + table(named))
    if report.attributes:
        parts.append("<h2>Most frequent attributes</h2>" + table(report.attributes))
    head = f"<meta charset='utf-8'><title>{html.escape(title)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _by_queue(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Once for all of them: there may be thousands of queues."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["queue"], []).append(row)
    return found


def _overview(of_hours: Mapping[str, list[Row]], of_waits: Mapping[str, list[Row]]) -> str:
    rows = []
    for queue in sorted(of_hours):
        mine, waits = of_hours[queue], of_waits.get(queue, [])
        sums = {kind: sum(row[kind] for row in mine) for kind in ("put", "delivered", "acked", "redelivered", "dead")}
        worst = max((row["life_p99"] for row in waits if _number(row["life_p99"])), default=None)
        rows.append({"queue": queue, **sums, "unfinished": mine[-1]["depth"], "worst hour's p99 to ack": _time(worst)})
    return "<h2>All queues</h2>" + table(rows)


def _span(hours: Sequence[str]) -> str:
    if not hours:
        return "<p>There is no event of a queue in this journal.</p>"
    told = f"{hours[0][:16]} to {hours[-1][:14]}59, UTC. Rates are means of whole hours, the first and the last too."
    return f"<p class='key'>{told}</p>"


def all_hours(seen: Iterable[str]) -> list[str]:
    """From the first to the last, those in between that nobody has seen included."""
    known = sorted(set(seen))
    if not known:
        return []
    first, last = (datetime.datetime.fromisoformat(known[at]) for at in (0, -1))
    count = (last - first) // datetime.timedelta(hours=1) + 1
    if count > MOST_HOURS:
        return known
    return [str(first + datetime.timedelta(hours=at)) for at in range(count)]


def filled(hours: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A queue's row for each of these hours: where it has none nothing happened, and what was unfinished still is."""
    mine = {row["hour"]: row for row in rows}
    nothing: dict[str, Any] = {name: 0 for row in rows[:1] for name in row}
    found: list[dict[str, Any]] = []
    for hour in hours:
        found.append(mine.get(hour) or {**nothing, "hour": hour, "depth": found[-1]["depth"] if found else 0})
    return found


def _queue(queue: str, hours: Sequence[str], rows: list[dict[str, Any]], waits: list[dict[str, Any]]) -> str:
    each = filled(hours, rows)
    rates = {name: [row[name] / 3600 for row in each] for name in ("put", "delivered", "acked")}
    again = {name: [row[name] for row in each] for name in ("redelivered", "dead")}
    by_hour = {row["hour"]: row for row in waits}
    names = [f"p{round(rank * 100)}" for rank in QUANTILES]

    def quantiles(what: str) -> dict[str, list[Any]]:
        return {name: [by_hour.get(hour, {}).get(f"{what}_{name}") for hour in hours] for name in names}

    plots = [
        plot("Messages per second", hours, rates),
        plot("Unfinished at the end of the hour", hours, {"unfinished": [row["depth"] for row in each]}),
        plot("Put (or due) to first delivery, seconds, by the hour of the put", hours, quantiles("wait"), True),
        plot("Put (or due) to ack, seconds, by the hour of the put", hours, quantiles("life"), True),
        plot("Redelivered and dead, messages in the hour", hours, again),
    ]
    return f"<h2>{html.escape(queue)}</h2><div class='plots'>{''.join(plots)}</div>"


class Scale(NamedTuple):
    """Where a value is between the bottom (0) and the top (1), and the values that are written beside the axis."""

    marks: Sequence[float]
    place: Callable[[float], float]


def even(numbers: Sequence[float]) -> Scale:
    top = _nice(max(numbers, default=1.0))
    return Scale((0.0, top / 2, top), lambda value: max(value, 0.0) / top)


def powers(numbers: Sequence[float]) -> Scale:
    """By powers of ten; what is below the lowest lies on it."""
    above = [value for value in numbers if value >= LEAST_S]
    low = math.floor(math.log10(min(above, default=LEAST_S)))
    high = max(low + 1, math.ceil(math.log10(max(above, default=1.0))))
    marks = [10.0**power for power in range(low, high + 1)]
    return Scale(marks, lambda value: (math.log10(max(value, marks[0])) - low) / (high - low))


def plot(title: str, labels: Sequence[str], series: Mapping[str, Sequence[Any]], by_powers: bool = False) -> str:
    """Lines over hours; a gap where there is nothing. One hour is a row of dots."""
    numbers = [float(value) for values in series.values() for value in values if _number(value)]
    scale = powers(numbers) if by_powers else even(numbers)
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(at: int) -> float:
        return LEFT + (inner_w * at / (len(labels) - 1) if len(labels) > 1 else inner_w / 2)

    def y(value: float) -> float:
        return TOP + inner_h * (1 - scale.place(value))

    drawn = []
    for mark in scale.marks:
        at = y(mark)
        drawn.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{at:.1f}' y2='{at:.1f}' stroke='var(--line)'/>")
        drawn.append(f"<text x='{LEFT - 6}' y='{at + 4:.1f}' text-anchor='end'>{_short(mark)}</text>")
    last = len(labels) - 1
    for at in sorted({round(last * part / LABELS) for part in range(LABELS + 1)} if labels else ()):
        anchor = "middle" if 0 < at < last or not last else "start" if not at else "end"
        hour = html.escape(f"{labels[at][5:13]}h")
        drawn.append(f"<text x='{x(at):.1f}' y='{HEIGHT - 8}' text-anchor='{anchor}'>{hour}</text>")
    key = []
    for (name, values), colour in zip(series.items(), COLOURS, strict=False):
        runs = unbroken(values)
        for run in runs:
            path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in run)
            drawn.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
            if len(values) <= 24 or len(run) == 1:  # a line of one point is not to be seen
                dots = [f"<circle cx='{x(at):.1f}' cy='{y(value):.1f}' r='2.5' fill='{colour}'/>" for at, value in run]
                drawn += dots
        key.append(f"<i style='background:{colour}'></i>{html.escape(name)}")
    svg = f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>{''.join(drawn)}</svg>"
    caption = f"<figcaption>{html.escape(title)}</figcaption><div class='key'>{''.join(key)}</div>"
    return f"<figure>{caption}{svg}</figure>"


def unbroken(values: Sequence[Any]) -> list[list[tuple[int, float]]]:
    """The pieces of a line: places and values, a new piece behind each gap."""
    pieces: list[list[tuple[int, float]]] = []
    for at, value in enumerate(values):
        if not _number(value):
            continue
        if not pieces or pieces[-1][-1][0] != at - 1:
            pieces.append([])
        pieces[-1].append((at, float(value)))
    return pieces


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>nothing</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values()) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):  # which is an int, too
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _time(seconds: Any) -> str:
    return f"{seconds:,.3f} s" if _number(seconds) else ""


def _nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten: what an axis ends at."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _short(value: float) -> str:
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"
