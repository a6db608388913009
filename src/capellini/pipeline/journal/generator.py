"""Journals of any size with known faults in them: written by Spark in parallel, the same for the same seed.

    Recipe ──▶ chapters (pure, here) ──▶ a task each (chapters.py) ──▶ rows of the journal
                                                                  └──▶ what was planted: fault, queue, generation, id

A lost event makes every life unknown that could have gone on in it. So events get lost in the first chapter only: what
is planted in later ones can still be told for sure.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capellini.model.errors import Invalid
from capellini.pipeline.journal.chapters import (
    FAULTS,
    SHORTEST_CHAPTER_S,
    TIMED_FAULTS,
    Chapter,
    planted,
    table_of,
)
from capellini.pipeline.journal.columns import SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CHAPTER_EVENTS: Final = 200_000  # one task's worth: some 20 MB while it is made
LEAST_CHAPTERS: Final = 10  # so that small journals have all kinds of chapters, too
QUEUES: Final = 4  # of each kind
EVENTS_OF_A_LIFE: Final = 3
PLANTED: Final = "fault string, queue string, generation bigint, id string"
CHAPTERS_PER_TASK: Final = 4


class Recipe(msgspec.Struct, frozen=True):
    """About so many `events` (rows). `faults`: how many of each; see chapters.FAULTS."""

    events: int
    seed: int = 1
    run_length: int = 4  # messages that an event of a work queue names, on average
    timed_share: float = 0.2  # of the events
    redelivered_share: float = 0.01  # of the messages
    faults: dict[str, int] = {}
    began_s: float = 1_750_000_000.0


def chapters_of(recipe: Recipe) -> list[Chapter]:
    """Raises Invalid for what cannot be made."""
    if wrong := sorted(set(recipe.faults) - set(FAULTS)):
        raise Invalid(f"{wrong[0]!r} is not a fault that can be planted: use {', '.join(FAULTS)}")
    if recipe.events < 1_000:
        raise Invalid("a journal is generated with at least 1,000 events")
    events_each = min(CHAPTER_EVENTS, recipe.events // LEAST_CHAPTERS)
    count = round(recipe.events / events_each)
    timed = [int((at + 1) * recipe.timed_share) > int(at * recipe.timed_share) for at in range(count)]
    faults = _spread(recipe, timed)
    bases: Counter[str] = Counter()
    chapters = []
    for at in range(count):
        queue = f"{'timed' if timed[at] else 'work'}-{at % QUEUES}"
        length = 1 if timed[at] else recipe.run_length
        messages = max(events_each // EVENTS_OF_A_LIFE * length, 4 * sum(faults[at].values()) + 10)
        ended = "cancelled" if timed[at] else "expired"
        usual = {"redelivered": int(messages * recipe.redelivered_share), ended: messages // 1_000}
        began_s = recipe.began_s + at * SHORTEST_CHAPTER_S
        chapters.append(
            Chapter(
                at, timed[at], queue, 0 if timed[at] else bases[queue], messages, began_s, SHORTEST_CHAPTER_S,
                recipe.run_length, usual, dict(faults[at]), recipe.seed,
            )
        )  # fmt: skip
        bases[queue] += messages
    return chapters


def _spread(recipe: Recipe, timed: list[bool]) -> list[Counter[str]]:
    """Which chapter gets which faults: by seed, each where its kind can be."""
    places = {
        True: [at for at, each in enumerate(timed) if each],
        False: [at for at, each in enumerate(timed) if not each and at],
    }
    spread: list[Counter[str]] = [Counter() for _ in timed]
    for fault, wanted in recipe.faults.items():
        allowed = [0][timed[0] :] if fault == "unknown" else places[fault in TIMED_FAULTS]
        if wanted and not allowed:
            lacks, how = ("timed", "raise") if fault in TIMED_FAULTS else ("work", "lower")
            raise Invalid(f"{fault} needs {lacks} queues: {how} timed_share")
        for at in range(wanted):
            spread[allowed[zlib.crc32(f"{recipe.seed}/{fault}/{at}".encode()) % len(allowed)]][fault] += 1
    return spread


def generated(spark: SparkSession, recipe: Recipe) -> tuple[DataFrame, DataFrame]:
    """The journal, and what was planted in it: (fault, queue, generation, id)."""
    chapters = chapters_of(recipe)
    tasks = max(1, len(chapters) // CHAPTERS_PER_TASK)
    numbers = spark.range(0, len(chapters), 1, tasks)
    return (
        numbers.mapInArrow(_each(chapters, table_of), SCHEMA),
        numbers.mapInArrow(_each([each for each in chapters if each.faults], _planted_table), PLANTED),
    )


def _each(
    chapters: list[Chapter], make: Callable[[Chapter], pa.Table]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    by_number = {chapter.number: chapter for chapter in chapters}

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                if number in by_number:
                    yield from make(by_number[number]).to_batches(65_536)

    return run


def _planted_table(chapter: Chapter) -> pa.Table:
    import pyarrow as pa

    rows = planted(chapter)
    return pa.table(
        {
            "fault": pa.array([fault for fault, _ in rows], pa.string()),
            "queue": pa.array([chapter.queue] * len(rows), pa.string()),
            "generation": pa.array([1] * len(rows), pa.int64()),
            "id": pa.array([id for _, id in rows], pa.string()),
        }
    )
