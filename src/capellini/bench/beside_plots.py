"""Plots as plain SVG: panels of horizontal bars, side by side. Text in, text out.

A bar is the median, the thin line across its end the least and the most. Ours are in another colour; queues that
confirm before the disk has it are hatched.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import msgspec

ROW: Final = 22
LABELS: Final = 190  # width of the names, left of each panel's bars
BARS: Final = 230
NUMBERS: Final = 80  # right of the bars
HEAD: Final = 34
MARGIN: Final = 12
COLUMNS: Final = 2
OURS: Final = "#c2410c"
OTHERS: Final = "#64748b"
HATCH: Final = (
    '<defs><pattern id="less" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#cbd5e1"/><rect width="3" height="6" fill="#64748b"/></pattern></defs>'
)


class Bar(msgspec.Struct, frozen=True):
    label: str
    value: float
    least: float
    most: float
    ours: bool = False
    less_durable: bool = False


class Panel(msgspec.Struct, frozen=True):
    title: str
    bars: tuple[Bar, ...]


def picture(panels: Sequence[Panel]) -> str:
    """One SVG, panels in rows of two."""
    width = LABELS + BARS + NUMBERS + MARGIN
    parts: list[str] = []
    top = MARGIN
    for at in range(0, len(panels), COLUMNS):
        row = panels[at : at + COLUMNS]
        for column, panel in enumerate(row):
            parts += _panel(panel, MARGIN + column * width, top)
        top += HEAD + ROW * max(len(panel.bars) for panel in row) + MARGIN
    whole = MARGIN + width * min(COLUMNS, len(panels))
    style = "font-family: sans-serif; font-size: 12px"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{top}" viewBox="0 0 {whole} {top}" '
        f'style="{style}">{HATCH}<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _panel(panel: Panel, left: int, top: int) -> list[str]:
    parts = [f'<text x="{left}" y="{top + 14}" font-weight="bold">{escape(panel.title)}</text>']
    widest = max((bar.most for bar in panel.bars), default=1.0) or 1.0
    zero = left + LABELS
    for index, bar in enumerate(panel.bars):
        y = top + HEAD + index * ROW - 8
        fill = OURS if bar.ours else "url(#less)" if bar.less_durable else OTHERS
        length, least, most = (value / widest * BARS for value in (bar.value, bar.least, bar.most))
        parts += [
            f'<text x="{zero - 6}" y="{y + 12}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect x="{zero}" y="{y}" width="{length:.1f}" height="{ROW - 6}" fill="{fill}"/>',
            f'<line x1="{zero + least:.1f}" x2="{zero + most:.1f}" y1="{y + 8}" y2="{y + 8}" stroke="black"/>',
            f'<text x="{zero + max(length, most) + 5:.1f}" y="{y + 12}">{short(bar.value)}</text>',
        ]
    return parts


def short(value: float) -> str:
    """Three digits that mean something, thousands apart."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
