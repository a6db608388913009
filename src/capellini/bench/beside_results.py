"""What a comparison found, as one value that is kept as JSON; and the figures, which are functions of it.

A queue's value in a line is the median of its repeats. Ratios are taken turn by turn, where both took turns, and the
median of them counts. The best is the best of those with the same durability: what a put confirms is on the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from capellini.bench.beside_lines import ALL_OURS, MIXED_B100, OUR_LOG, OURS
from capellini.bench.beside_runs import Sample
from capellini.bench.figures import Detail, Figure, judge, unmeasured

REDIS: Final = "Redis Streams"


class Queue(msgspec.Struct, frozen=True):
    label: str
    says: str
    durable: str  # what is less durable about it; empty: nothing
    version: str = ""
    missing: str = ""  # why it was not measured at all
    skipped: Mapping[str, str] = {}  # by line: why not


class Results(msgspec.Struct, frozen=True):
    when: str
    machine: str
    load: tuple[float, float]  # of the last minute, before and after
    quick: bool
    took_s: float
    queues: tuple[Queue, ...]
    samples: tuple[Sample, ...]

    def queue(self, label: str) -> Queue | None:
        return next((queue for queue in self.queues if queue.label == label), None)

    def of(self, label: str, line: str, measure: str) -> list[Sample]:
        return [s for s in self.samples if (s.queue, s.line, s.measure) == (label, line, measure)]

    def rates(self, label: str, line: str, measure: str) -> list[float]:
        """Messages a second, one for each repeat."""
        if measure == "whole":
            return self._whole(label, line)
        return [sample.per_s for sample in self.of(label, line, measure)]

    def _whole(self, label: str, line: str) -> list[float]:
        """Of a backlog: of filling and draining it, one after the other."""
        pairs = zip(self.of(label, line, "fill"), self.of(label, line, "drain"), strict=False)
        return [1 / (1 / fill.per_s + 1 / drain.per_s) for fill, drain in pairs]

    def rate(self, label: str, line: str, measure: str) -> float | None:
        found = self.rates(label, line, measure)
        return median(found) if found else None

    def best(self, line: str, measure: str) -> str | None:
        """The fastest of the others that are as durable."""
        found = {
            queue.label: rate
            for queue in self.queues
            if queue.label not in ALL_OURS and not queue.durable
            and (rate := self.rate(queue.label, line, measure)) is not None
        }  # fmt: skip
        return max(found, key=lambda label: found[label]) if found else None


def figure(results: Results, name: str) -> Figure:
    """One of the figures of the comparison."""
    made: Figure | str
    match name:
        case "peers.mixed_b100_vs_best":
            made = _beside(results, name, OURS, MIXED_B100, "life")
        case "peers.fanout3_vs_best":
            made = _beside(results, name, OUR_LOG, ("fanout3",), "life")
        case "peers.backlog_1M_vs_best":
            made = _beside(results, name, OUR_LOG, ("backlog",), "whole")
        case "peers.single_c1_vs_best":
            made = _beside(results, name, OURS, ("mixed_c1_100B",), "life")
        case "peers.single_c32_vs_best":
            made = _beside(results, name, OURS, ("mixed_c32_100B",), "life")
        case "peers.cpu_b100_vs_redis":
            made = _cpu(results, name)
        case _:
            made = _recovery(results, name)
    return unmeasured(name, made) if isinstance(made, str) else made


def _beside(results: Results, name: str, ours: str, lines: Sequence[str], measure: str) -> Figure | str:
    """The ratio to the best; of several lines, the worst ratio."""
    ratios: dict[str, float] = {}
    detail: Detail = {}
    for line in lines:
        mine, best = results.rates(ours, line, measure), results.best(line, measure)
        if not mine or best is None:
            continue
        theirs = results.rates(best, line, measure)
        each = [a / b for a, b in zip(mine, theirs, strict=False)]
        ratios[line] = median(each)
        detail[line] = {
            "ratios": [round(ratio, 2) for ratio in each], "per_s": round(median(mine)),
            "best": best, "best_per_s": round(median(theirs)),
        }  # fmt: skip
        if faster := _less_durable_ahead(results, line, measure, median(mine)):
            detail[f"{line}_less_durable_ahead"] = faster
    if not ratios:
        return _why_not(results, ours, lines)
    return judge(name, min(ratios.values()), {"kind": ours, **detail})


def _less_durable_ahead(results: Results, line: str, measure: str, mine: float) -> dict[str, int]:
    found = {queue.label: results.rate(queue.label, line, measure) for queue in results.queues if queue.durable}
    return {label: round(rate) for label, rate in found.items() if rate is not None and rate > mine}


def _why_not(results: Results, ours: str, lines: Sequence[str]) -> str:
    reasons = [
        f"{queue.label}: {reason}"
        for queue in results.queues
        if (reason := queue.missing or next((queue.skipped[line] for line in lines if line in queue.skipped), ""))
        and (queue.label == ours or queue.label not in ALL_OURS)
    ]
    return "; ".join(reasons) or "nothing was measured"


def _cpu(results: Results, name: str) -> Figure | str:
    line = MIXED_B100[0]
    mine = [sample.server_us for sample in results.of(OURS, line, "life") if sample.server_us]
    theirs = [sample.server_us for sample in results.of(REDIS, line, "life") if sample.server_us]
    ratios = [a / b for a, b in zip(mine, theirs, strict=False)]
    if not ratios:
        return _why_not(results, OURS, (line,))
    detail: Detail = {
        "ratios": [round(ratio, 2) for ratio in ratios],
        "server_us": round(median(mine), 2),
        "redis_server_us": round(median(theirs), 2),
    }
    return judge(name, median(ratios), detail)


def _recovery(results: Results, name: str) -> Figure | str:
    """The slower of our two kinds."""
    found = {label: results.of(label, "backlog", "first") for label in (OURS, OUR_LOG)}
    times_s = {label: median(sample.took_s for sample in samples) for label, samples in found.items() if samples}
    if not times_s:
        return _why_not(results, OURS, ("backlog",))
    inside = {label: sum(s.messages for s in results.of(label, "backlog", "fill")) for label in times_s}
    detail: Detail = {
        "s": {label: round(each, 2) for label, each in times_s.items()},
        "messages": inside,
        "others_s": {
            queue.label: round(median(sample.took_s for sample in samples), 2)
            for queue in results.queues
            if queue.label not in times_s and (samples := results.of(queue.label, "backlog", "first"))
        },
    }
    return judge(name, max(times_s.values()), detail)


def behind(results: Results) -> list[tuple[str, str, str, float]]:
    """Where another queue is ahead: line, measure, queue, how many times as fast. Durable or not."""
    found = []
    for line, measure in sorted({(sample.line, sample.measure) for sample in results.samples}):
        if measure in ("late", "first"):
            continue
        ours = OUR_LOG if line in ("fanout3", "backlog") else OURS
        mine = results.rate(ours, line, measure)
        for queue in results.queues:
            rate = results.rate(queue.label, line, measure)
            if mine and rate and rate > mine and queue.label not in ALL_OURS:
                found.append((line, measure, queue.label, rate / mine))
    return found
