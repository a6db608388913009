"""How much was put and not finished at the end of each hour: sums over what the journal tells, from its first event on.

    generation 1 ──────┐ purged: what was left is nobody's
    generation 2       └──────────▶     of a group its versions likewise: a seek begins one

So what counts at an hour is the newest that had begun by then, and of older ones nothing. What was finished and never
put was put before the journal began: so much was there at its beginning, at least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from capellini.queues.events import queue_in

ENDS: Final = ("acked", "dead", "expired", "cancelled", "skipped", "replayed")
INNER: Final = ("generation", "seek", "own", "told")  # for the sums alone

Row = dict[str, Any]
Era = tuple[int, int]  # a generation, and in it the version of a group


def with_depths(rows: Sequence[Row]) -> list[Row]:
    """A row for each queue and hour, in this order, with its `depth`.

    rows: by queue, generation, `seek` (the version of a group, or 0) and hour. `put` is what was put for that version,
    `told` what of it no other version has, `own` the events that are no puts."""
    begun = _begun(rows)
    queues: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        queues[row["queue"]].append(row)
    return [each for queue in sorted(queues) for each in _of(queue, queues[queue], begun[queue_in(queue)])]


def _begun(rows: Sequence[Row]) -> dict[str, dict[int, str]]:
    """The first hour of each generation, by the queue's own name."""
    begun: dict[str, dict[int, str]] = defaultdict(dict)
    for row in rows:
        generations, generation = begun[queue_in(row["queue"])], row["generation"]
        generations[generation] = min(row["hour"], generations.get(generation, row["hour"]))
    return begun


def _of(queue: str, rows: Sequence[Row], generations: Mapping[int, str]) -> Iterator[Row]:
    eras: dict[Era, list[Row]] = defaultdict(list)
    for row in rows:
        eras[row["generation"], row["seek"]].append(row)
    depths = {era: _sums(mine) for era, mine in eras.items()}
    begins = {era: _begins(mine, era == min(eras)) for era, mine in eras.items()}
    newer = {hour for generation, hour in generations.items() if generation > min(eras)[0]}
    by_hour: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_hour[row["hour"]].append(row)
    left: dict[Era, int] = {}
    first = min(by_hour)
    for hour in sorted({*by_hour, *(each for each in newer if each > first)}):
        left |= {era: sums[hour] for era, sums in depths.items() if hour in sums}
        newest = max(era for era, begun in begins.items() if begun <= hour)
        purged = any(generation > newest[0] and begun <= hour for generation, begun in generations.items())
        names = [name for name in rows[0] if name not in ("queue", "hour", "put", *INNER)]
        sums = {name: sum(row[name] for row in by_hour[hour]) for name in names}
        put = sum(row["told"] for row in by_hour[hour])
        yield {"queue": queue, "hour": hour, "put": put, **sums, "depth": 0 if purged else left.get(newest, 0)}


def _begins(rows: Sequence[Row], oldest: bool) -> str:
    """A version of a group begins with what it does: it has puts of long before. What nobody did before, it has."""
    return min(str(row["hour"]) for row in rows if row["own"] or not row["seek"] or oldest)


def _sums(rows: Sequence[Row]) -> dict[str, int]:
    """What is left at the end of each of these hours."""
    ordered = sorted(rows, key=lambda row: str(row["hour"]))
    changes = [row["put"] - sum(row[name] for name in ENDS) for row in ordered]
    before = -min(0, *accumulate(changes))
    return {row["hour"]: left + before for row, left in zip(ordered, accumulate(changes), strict=True)}
