"""The page of the comparison: tables and plots from what was found. All of it is a function of `Results`.

FOLDER/benchmarks.md              the part between two marks is replaced
FOLDER/benchmarks/peers.json      all that was measured
FOLDER/benchmarks/peers-*.svg     the plots
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from capellini.bench.beside_lines import ALL_OURS, LINES, SHAPES
from capellini.bench.beside_plots import Bar, Panel, picture, short
from capellini.bench.beside_results import Queue, Results, behind
from capellini.bench.beside_runs import DELAY_S, PACE_PER_S, Sample
from capellini.bench.figures import Figure

BEGIN: Final = "<!-- made by `capellini bench peers --page`: begin -->"
END: Final = "<!-- made by `capellini bench peers --page`: end -->"
NONE: Final = "–"
RATES: Final[Mapping[str, tuple[str, str]]] = {  # title: the line's work, the measure
    "Mixed: put, get and ack at the same time": ("mixed", "life"),
    "Put only": ("apart", "put"),
    "Get and ack only": ("apart", "get"),
}


def write(folder: Path, results: Results, figures: Sequence[Figure]) -> None:
    """Replaces the part of benchmarks.md that is ours to make."""
    page = folder / "benchmarks.md"
    beside = folder / "benchmarks"
    beside.mkdir(exist_ok=True)
    (beside / "peers.json").write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    for name, svg in plots(results).items():
        (beside / f"{name}.svg").write_text(svg)
    page.write_text(placed(page.read_text(), made(results, figures)))


def placed(text: str, part: str) -> str:
    """The page with that part between the marks; they are added at its end where it has none."""
    if BEGIN not in text or END not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{part.strip()}\n\n{END}{rest.partition(END)[2]}"


def made(results: Results, figures: Sequence[Figure]) -> str:
    parts = [_head(results), _figures(figures)]
    parts += [f"![{title}](benchmarks/{name}.svg)" for name, title in PLOTS.items() if name in plots(results)]
    for title, (work, measure) in RATES.items():
        columns = {shape.says: f"{work}_{shape.name}_100B" for shape in SHAPES}
        parts.append(_rates(results, f"{title}, 100-byte bodies, messages/s", columns, measure))
    bodies = [line for line in LINES.values() if line.work == "mixed" and line.body_bytes > 100]
    columns = {f"{line.body_bytes:,} bytes, {line.shape.says}": line.name for line in bodies}
    parts += [
        _rates(results, "Mixed, larger bodies, messages/s", columns, "life"),
        _many(results), _late(results), _cost(results), _ahead(results), _queues(results),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _head(results: Results) -> str:
    size = "a quick run: short, once each" if results.quick else "a full run"
    before, after = results.load
    return (
        "### What was found\n\n"
        f"{results.when} UTC, {size}, {results.took_s / 60:.0f} minutes on {results.machine}. "
        f"Load of the machine before and after: {before:g} and {after:g}. "
        "Medians, in brackets the least and the most of the repeats; * confirms before the disk has it. "
        "All that was measured is in [peers.json](benchmarks/peers.json)."
    )


def _figures(figures: Sequence[Figure]) -> str:
    rows = [
        (f"`{each.figure}`", NONE if each.value is None else f"{each.value:g}", each.bar, "yes" if each.holds else "no")
        for each in figures
    ]
    return table(("figure", "value", "bar", "holds"), rows)


def _rates(results: Results, title: str, columns: Mapping[str, str], measure: str) -> str:
    rows = []
    for queue in results.queues:
        cells = [spread(results.rates(queue.label, line, measure)) for line in columns.values()]
        if any(cell != NONE for cell in cells):
            rows.append((named(queue), *cells))
    return f"**{title}**\n\n{table(('queue', *columns), rows)}" if rows else ""


def _many(results: Results) -> str:
    """Fan-out, and a backlog with what a crash then costs."""
    heads = ("queue", "fan-out to 3, messages/s", "backlog", "fill, messages/s", "drain, messages/s",
             "first message after SIGKILL, s", "memory, bytes a message")  # fmt: skip
    rows = []
    for queue in results.queues:
        fill = results.of(queue.label, "backlog", "fill")
        first = [sample.took_s for sample in results.of(queue.label, "backlog", "first")]
        fan = spread(results.rates(queue.label, "fanout3", "life"))
        if not fill and fan == NONE:
            continue
        filled, drained = (spread(results.rates(queue.label, "backlog", measure)) for measure in ("fill", "drain"))
        memory = [sample.memory_mb * 1e6 / sample.messages for sample in fill if sample.memory_mb is not None]
        inside = f"{fill[0].messages:,}" if fill else NONE
        rows.append((named(queue), fan, inside, filled, drained, spread(first), spread(memory)))
    return f"**Fan-out, backlog, recovery**\n\n{table(heads, rows)}" if rows else ""


def _late(results: Results) -> str:
    kinds, parts = ("put to delivered", "after due"), ("p50", "p99", "p99.9")
    heads = ("queue", *(f"{kind} {part}" for kind in kinds for part in parts))
    rows = []
    for queue in results.queues:
        cells = []
        for line in ("pace", "delayed"):
            samples = results.of(queue.label, line, "late")
            cells += [spread([sample.late_ms[at] for sample in samples]) for at in range(3)]
        if any(cell != NONE for cell in cells):
            rows.append((named(queue), *cells))
    title = f"**Latency at {PACE_PER_S:g} messages a second, and of messages delayed by {DELAY_S:g} s, in ms**"
    return f"{title}\n\n{table(heads, rows)}" if rows else ""


def _cost(results: Results) -> str:
    wanted: dict[str, Callable[[Sample], float | None]] = {
        "server CPU, µs a message": lambda sample: sample.server_us,
        "client CPU, µs a message": lambda sample: sample.client_us,
        "server memory, MB": lambda sample: sample.memory_mb,
        "bytes written by byte received": lambda sample: sample.written_per_byte,
    }
    rows = []
    for queue in results.queues:
        samples = results.of(queue.label, "mixed_b100_100B", "life")
        if samples:
            cells = [[x for sample in samples if (x := of(sample)) is not None] for of in wanted.values()]
            rows.append((named(queue), *(spread(cell) for cell in cells)))
    title = "**What a message costs: mixed, batches of 100, 100-byte bodies**"
    return f"{title}\n\n{table(('queue', *wanted), rows)}" if rows else ""


def _ahead(results: Results) -> str:
    found = behind(results)
    if not found:
        return "**Where another queue is ahead**: nowhere."
    rows = []
    for line, measure, label, times in found:
        queue = results.queue(label)
        rows.append((f"{line}, {measure}", label, f"{times:.2f} times", (queue.durable if queue else "") or "the same"))
    return f"**Where another queue is ahead**\n\n{table(('line', 'queue', 'as fast', 'durability'), rows)}"


def _queues(results: Results) -> str:
    rows = [
        (queue.label, queue.version or NONE, queue.says, queue.durable or "on the disk when confirmed", _absent(queue))
        for queue in results.queues
    ]
    return f"**Queues**\n\n{table(('queue', 'version', 'how', 'a confirmed put', 'not measured'), rows)}"


def _absent(queue: Queue) -> str:
    """Why it has no part, or in which lines not; one line a reason."""
    if queue.missing:
        return queue.missing
    by_reason: dict[str, list[str]] = {}
    for line, reason in queue.skipped.items():
        by_reason.setdefault(reason, []).append(line)
    where = {why: lines[0] if len(lines) == 1 else f"{len(lines)} lines" for why, lines in by_reason.items()}
    return "; ".join(f"{lines}: {why}" for why, lines in where.items())


PLOTS: Final[Mapping[str, str]] = {
    "peers-mixed": "Messages a second, put, get and ack at the same time",
    "peers-many": "Fan-out and backlog",
    "peers-late": "Latency",
    "peers-cost": "What a message costs",
}


def plots(results: Results) -> dict[str, str]:
    """SVGs by name; those with nothing in them are left out."""
    rates = {f"mixed, {shape.says}": f"mixed_{shape.name}_100B" for shape in SHAPES}
    rates |= {f"mixed, batches of 100, {size} bodies": f"mixed_b100_{size}" for size in ("1kB", "16kB")}
    costs = "mixed_b100_100B"
    sets = {
        "peers-mixed": [_panel(results, f"{title}, messages/s", line, "life") for title, line in rates.items()],
        "peers-many": [
            _panel(results, "fan-out to three groups, messages/s", "fanout3", "life"),
            _panel(results, "backlog, fill and drain, messages/s", "backlog", "whole"),
            _bars(results, "first message after SIGKILL, s", "backlog", "first", lambda sample: sample.took_s),
        ],
        "peers-late": [
            _bars(results, "put to delivered, p50, ms", "pace", "late", lambda sample: sample.late_ms[0]),
            _bars(results, "put to delivered, p99, ms", "pace", "late", lambda sample: sample.late_ms[1]),
        ],
        "peers-cost": [
            _bars(results, "server CPU, µs a message", costs, "life", lambda sample: sample.server_us),
            _bars(results, "bytes written by byte received", costs, "life", lambda sample: sample.written_per_byte),
        ],
    }
    found = {name: [panel for panel in panels if panel.bars] for name, panels in sets.items()}
    return {name: picture(panels) for name, panels in found.items() if panels}


def _panel(results: Results, title: str, line: str, measure: str) -> Panel:
    return Panel(title, _sorted(results, lambda queue: results.rates(queue.label, line, measure), most_first=True))


def _bars(results: Results, title: str, line: str, measure: str, value: Callable[[Sample], float | None]) -> Panel:
    def values(queue: Queue) -> list[float]:
        return [x for sample in results.of(queue.label, line, measure) if (x := value(sample)) is not None]

    return Panel(title, _sorted(results, values, most_first=False))


def _sorted(results: Results, values: Callable[[Queue], list[float]], most_first: bool) -> tuple[Bar, ...]:
    """The best on top."""
    bars = [
        Bar(queue.label, median(each), min(each), max(each), queue.label in ALL_OURS, bool(queue.durable))
        for queue in results.queues
        if (each := values(queue))
    ]
    return tuple(sorted(bars, key=lambda bar: bar.value, reverse=most_first))


def named(queue: Queue) -> str:
    return f"{queue.label} *" if queue.durable else queue.label


def spread(values: Sequence[float]) -> str:
    """The median, and the ends where there are several."""
    if not values:
        return NONE
    ends = f" ({short(min(values))} to {short(max(values))})" if len(values) > 1 else ""
    return f"{short(median(values))}{ends}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
