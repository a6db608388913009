"""The page: plots drawn as SVG in the page itself, tables below them. One file, nothing to fetch, light and dark.

    queue ──▶ rates · depth · wait quantiles, one small plot each, hours from left to right

Waits are drawn on a scale of powers of ten: medians of milliseconds and a bad hour's seconds are both to be read.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from capellini.pipeline.report.tables import QUANTILES, Report

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 560, 180, 52, 26, 14, 10
LEAST_S: Final = 1e-4  # waits below that are all alike
COLOURS: Final = ("#2f6fde", "#d9822b", "#2d9d78", "#b3446c", "#7a5cc9")
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
    queues = sorted({row["queue"] for row in report.hours})
    parts = [f"<h1>{html.escape(title)}</h1>", _overview(report, queues)]
    for queue in queues:
        parts.append(_queue(queue, _of(report.hours, queue), _of(report.waits, queue)))
    if report.poison:
        parts.append("<h2>Delivered most often</h2>" + table(report.poison))
    if report.attributes:
        parts.append("<h2>Most frequent attributes</h2>" + table(report.attributes))
    head = f"<meta charset='utf-8'><title>{html.escape(title)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _of(rows: Iterable[dict[str, Any]], queue: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["queue"] == queue]


def _overview(report: Report, queues: Sequence[str]) -> str:
    rows = []
    for queue in queues:
        mine, waits = _of(report.hours, queue), _of(report.waits, queue)
        sums = {kind: sum(row[kind] for row in mine) for kind in ("put", "delivered", "acked", "redelivered", "dead")}
        worst = max((row["life_p99"] for row in waits if _number(row["life_p99"])), default=None)
        rows.append({"queue": queue, **sums, "unfinished": mine[-1]["depth"], "worst hour's p99 to ack": _time(worst)})
    return "<h2>All queues</h2>" + table(rows)


def _queue(queue: str, hours: list[dict[str, Any]], waits: list[dict[str, Any]]) -> str:
    rates = {name: [row[name] / 3600 for row in hours] for name in ("put", "delivered", "acked")}
    depth = {"unfinished": [row["depth"] for row in hours], "redelivered": [row["redelivered"] for row in hours]}
    names = [f"p{round(rank * 100)}" for rank in QUANTILES]
    labels = [row["hour"] for row in hours]
    wait_labels = [row["hour"] for row in waits]
    plots = [
        plot("Messages per second", labels, rates),
        plot("Unfinished at the end of the hour", labels, depth),
        plot("Put to first delivery, seconds", wait_labels, {n: [r[f"wait_{n}"] for r in waits] for n in names}, True),
        plot("Put to ack, seconds", wait_labels, {n: [r[f"life_{n}"] for r in waits] for n in names}, True),
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
    for at in sorted({0, len(labels) - 1} if labels else ()):
        anchor = "start" if at == 0 and len(labels) > 1 else "end" if len(labels) > 1 else "middle"
        hour = html.escape(f"{labels[at][:13]}h")
        drawn.append(f"<text x='{x(at):.1f}' y='{HEIGHT - 8}' text-anchor='{anchor}'>{hour}</text>")
    key = []
    for (name, values), colour in zip(series.items(), COLOURS, strict=False):
        points = [(x(at), y(float(value))) for at, value in enumerate(values) if _number(value)]
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        drawn.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        if len(points) <= 24:
            drawn += [f"<circle cx='{a:.1f}' cy='{d:.1f}' r='2.5' fill='{colour}'/>" for a, d in points]
        key.append(f"<i style='background:{colour}'></i>{html.escape(name)}")
    svg = f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>{''.join(drawn)}</svg>"
    caption = f"<figcaption>{html.escape(title)}</figcaption><div class='key'>{''.join(key)}</div>"
    return f"<figure>{caption}{svg}</figure>"


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
    if isinstance(value, bool):
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
