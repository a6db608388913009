"""The audit as a Spark job: every life looked at once, few of them closely.

    journal ──▶ digest (one pass, little left) ──▶ windows of what is missing
                      └──▶ by block of ids: plain lives counted, the others are suspects ─┐
            ──▶ log: each reader of an extent gets the puts of it (readers.py)
            ──▶ timed: by id, counts and due: plain lives counted, the others suspects ───┤
            ──▶ all events of the suspects ◀──────────────────────────────────────────────┘
                      └──▶ one life at a time: judge (verdict.py) ──▶ findings, with ids

So the cost is that of reading the journal twice, and grows with the number of events and suspects alone. Suspects are
taken SUSPECTS_AT_ONCE at a time: what is held in memory does not grow with the journal. Redelivered messages, and those
that wait, are suspects too: innocent ones cost time and nothing else.

An audit may follow an earlier one (days.py): it then gets what that one left, and leaves the same for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capellini.pipeline.audit.digest import NUMBERS, RUNS, digest_of, windows_of
from capellini.pipeline.audit.readers import NOT_QUEUE, Newest, with_puts
from capellini.pipeline.audit.runs import judged, overlaps
from capellini.pipeline.audit.verdict import NO_VERSION, PROMISES, SETTLED, Finding, Rules, Told, Window, judge, over
from capellini.queues.timed.positions import ms_of_ticks, parse_id, ticks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SUSPECTS_AT_ONCE: Final = 1_000_000  # runs; with their arrays some 16 MB in each task
MOST_WINDOWS: Final = 10_000  # kept one by one; more are told as one that covers them all
JUDGED: Final = (
    "queue string, generation bigint, block bigint, lives bigint, plain bigint, first bigint, count bigint, "
    "version int"  # with which it is over; null: suspects
)
FINDINGS: Final = "fault string, promise int, queue string, generation bigint, id string, at double, says string"
VERDICTS: Final = f"{FINDINGS}, version int"  # a life that is over has one more row, of the fault `settled`
DETAIL: Final = ("kind", "version", "at", "node", "incarnation", "number", "detail")
DETAILS: Final = (
    "queue string, generation bigint, id string, kind string, version int, at double, node string, "
    "incarnation string, number bigint, detail string"
)
# A time uuid's ticks, from its text; see queues/timed/positions.py.
DUE_S: Final = (
    "(cast(conv(concat(substr(id, 14, 3), substr(id, 9, 4), substr(id, 1, 8)), 16, 10) AS bigint)"
    " - 122192928000000000L) / 1e7"
)


class Audit(msgspec.Struct, frozen=True):
    """What came out. `counts`: findings by fault; `missing`: events that are known not to be there."""

    events: int
    lives: int
    plain: int
    counts: dict[str, int]
    windows: list[Window]
    ended_s: float

    @property
    def broken(self) -> int:
        return sum(self.counts.get(fault, 0) for fault in PROMISES)

    @property
    def missing(self) -> int:
        return sum(each.count for each in self.windows)


class Options(msgspec.Struct, frozen=True):
    """`drained`: queues known to be empty (None: all of them). Times as in verdict.Rules."""

    drained: frozenset[str] | None = frozenset()
    skew_s: float = 1.0
    late_s: float = 2.0
    stuck_s: float = 86_400.0


class Before(msgspec.Struct, frozen=True):
    """What an earlier audit left: rows of lives (numbers not above 0), and the numbers that it heard."""

    rows: DataFrame
    numbers: DataFrame


class After(msgspec.Struct, frozen=True):
    """What a later audit needs; good while `keep` is called. `settled`: (queue, generation, first, count, id, version);
    `unfinished`: all that was told of lives that go on (DETAILS)."""

    digest: DataFrame
    settled: DataFrame
    unfinished: DataFrame
    ended_s: float


Keep = Callable[[After], None]


def audit(
    journal: DataFrame, options: Options | None = None, say: Callable[[str], None] = lambda _: None,
    before: Before | None = None, keep: Keep | None = None,
) -> tuple[Audit, DataFrame]:  # fmt: skip
    """The summary, and the findings (FINDINGS). `journal`: the columns of journal/columns.py."""
    options = options or Options()
    journal, readers = with_puts(journal if before is None else journal.unionByName(before.rows))
    digest = digest_of(journal).persist()
    held = [digest]  # to be let go: Spark knows by its plan what it holds, and the same plan may read other files later
    try:
        tellers = digest.where(f"stream = {NUMBERS}").groupBy("a", "b")
        heard = tellers.agg(_expr("sum(`rows`) AS told"), _expr("max(to_s) AS to_s")).collect()
        events, ended_s = sum(row["told"] for row in heard), max((row["to_s"] for row in heard), default=0.0)
        speaking = frozenset((row[0], row[1]) for row in heard) if keep is not None else frozenset()
        say(f"read {events:,} events")
        if before is not None:
            digest = digest.unionByName(before.numbers)
        windows = _kept([Window(*row) for row in windows_of(digest).collect()])
        rules = Rules(ended_s, options.drained, options.skew_s, options.late_s, options.stuck_s)
        newest = Newest(_newest(journal), readers)
        numbered = _judged(digest).persist()
        held.append(numbered)
        lives, plain = _sums(numbered)
        timed = _timed(journal, rules).persist()
        held.append(timed)
        timed_lives, timed_plain = _sums(timed)
        say(f"{lives + timed_lives:,} lives, {plain + timed_plain:,} of them plain")
        suspects = numbered.where("first IS NOT NULL AND version IS NULL")
        parts = [_timed_details(journal, timed)]
        parts += [_details(journal, each) for each in _slices(suspects)]
        details = reduce(lambda one, other: one.unionByName(other), parts)
        verdicts = _verdicts(details, Court(rules, windows, newest, speaking)).localCheckpoint()
        findings = verdicts.where(f"fault <> '{SETTLED}'").drop("version")
        counts = {row["fault"]: row["count"] for row in findings.groupBy("fault").count().collect()}
        if keep is not None:
            keep(_left(digest, numbered, timed, details, verdicts, ended_s))
    finally:
        for each in held:
            each.unpersist()
    return Audit(events, lives + timed_lives, plain + timed_plain, counts, windows, ended_s), findings


def _left(
    digest: DataFrame, numbered: DataFrame, timed: DataFrame, details: DataFrame, verdicts: DataFrame, ended_s: float
) -> After:
    """What is over as runs and ids, and what goes on."""
    nothing = "cast(null AS bigint)"
    ended = verdicts.where(f"fault = '{SETTLED}'").select("queue", "generation", "id", "version")
    number = "id RLIKE '^[0-9]{1,19}$'"  # ids of timed queues have 32 digits
    runs = numbered.where("version IS NOT NULL").selectExpr(
        "queue", "generation", "first", "count", "string(null) AS id", "version"
    )
    ids = timed.where("version IS NOT NULL").selectExpr(
        "queue", "generation", f"{nothing} AS first", f"{nothing} AS count", "id", "version"
    )
    single = ended.selectExpr(
        "queue", "generation", f"if({number}, bigint(id), NULL) AS first", f"if({number}, 1L, NULL) AS count",
        f"if({number}, NULL, id) AS id", "version",
    )  # fmt: skip
    unfinished = details.join(ended, ["queue", "generation", "id"], "left_anti")
    return After(digest, runs.unionByName(ids).unionByName(single), unfinished, ended_s)


def among(column: str, values: Sequence[str]) -> str:
    """SQL: one of these."""
    return f"{column} IN ({', '.join(map(repr, values))})" if values else "false"


def _sums(judged: DataFrame) -> tuple[int, int]:
    row = judged.selectExpr("coalesce(sum(lives), 0L) AS lives", "coalesce(sum(plain), 0L) AS plain").first()
    return (int(row["lives"]), int(row["plain"])) if row is not None else (0, 0)


def _kept(windows: list[Window]) -> list[Window]:
    if len(windows) <= MOST_WINDOWS:
        return windows
    missing = sum(each.count for each in windows)
    after, before = min(each.after_s for each in windows), max(each.before_s for each in windows)
    return [Window("", "", 0, missing, after, before)]


def _newest(journal: DataFrame) -> dict[str, int]:
    """The newest generation of each queue: what was left of older ones was purged with them."""
    named = journal.where("queue <> ''").selectExpr(f"regexp_replace(queue, '{NOT_QUEUE}', '') AS queue", "generation")
    return {row[0]: row[1] for row in named.groupBy("queue").agg({"generation": "max"}).collect()}


def _judged(digest: DataFrame) -> DataFrame:
    """Per block its counts in one row, and a row for each run of lives that are over, or suspects."""

    def run(table: pa.Table) -> pa.Table:
        names = ("block", "kind", "version", "first", "count")
        block, kind, version, first, count = (table[name].combine_chunks().to_numpy() for name in names)
        found = judged(int(block[0]), kind, version, first, count)
        parts = [(1, *found.acked), (NO_VERSION, *found.ended), (None, *found.suspects)]
        versions = [each for each, starts, _ in parts for _ in range(len(starts))]
        size = len(versions) + 1
        blank, none = [None] * (size - 1), pa.nulls(1, pa.int64())
        return pa.table(
            {
                "queue": pa.array([table["a"][0].as_py()] * size, pa.string()),
                "generation": pa.array([int(table["b"][0].as_py())] * size, pa.int64()),
                "block": pa.array(np.full(size, block[0])),
                "lives": pa.array([found.lives, *blank], pa.int64()),
                "plain": pa.array([found.plain, *blank], pa.int64()),
                "first": pa.concat_arrays([none, *(pa.array(each, pa.int64()) for _, each, _ in parts)]),
                "count": pa.concat_arrays([none, *(pa.array(each, pa.int64()) for *_, each in parts)]),
                "version": pa.array([None, *versions], pa.int32()),
            }
        )

    return digest.where(f"stream = {RUNS}").groupBy("a", "b", "block").applyInArrow(run, JUDGED)


def _timed(journal: DataFrame, rules: Rules) -> DataFrame:
    """Lives named by text: one row each. `plain` 1 or 0; `version` with which it is over; `suspect`."""

    def told(kind: str) -> str:
        return f"count_if(kind = '{kind}')"

    lives = journal.where("id IS NOT NULL").groupBy("queue", "generation", "id")
    counted = lives.agg(
        *(_expr(f"{told(kind)} AS {kind}") for kind in ("put", "delivered", "acked", "expired", "cancelled", SETTLED)),
        _expr("count(*) AS told"),
        _expr("max(version) AS version"),
        _expr("min(if(kind = 'delivered', at, NULL)) AS taken_s"),
    )
    margin_s = rules.late_s + rules.skew_s
    acked = (
        "put = 1 AND delivered = 1 AND acked = 1 AND told = 3 AND version = 1 AND "
        f"taken_s BETWEEN {DUE_S} - {rules.skew_s} AND {DUE_S} + {margin_s}"
    )
    ended = "put = 1 AND delivered = 0 AND expired + cancelled = 1 AND told = 2"
    known = f"told = {SETTLED}"  # nothing since an earlier audit
    return counted.selectExpr(
        "queue", "generation", "id", f"if({known}, 0L, 1L) AS lives", f"if(({acked}) OR ({ended}), 1L, 0L) AS plain",
        f"CASE WHEN {acked} THEN 1 WHEN {ended} THEN {NO_VERSION} END AS version",
        f"NOT (({acked}) OR ({ended}) OR ({known})) AS suspect",
    )  # fmt: skip


def _expr(text: str) -> Any:
    from pyspark.sql import functions as f

    return f.expr(text)


def _timed_details(journal: DataFrame, timed: DataFrame) -> DataFrame:
    suspects = timed.where("suspect").select("queue", "generation", "id")
    return (
        journal.where("id IS NOT NULL")
        .join(suspects, ["queue", "generation", "id"], "left_semi")
        .select("queue", "generation", "id", *DETAIL)
    )


def _slices(suspects: DataFrame) -> Iterator[dict[tuple[str, int], tuple[Any, Any]]]:
    """The suspects in parts that fit, each by (queue, generation) as sorted starts and ends."""
    slices = max(1, -(-suspects.count() // SUSPECTS_AT_ONCE))
    for at in range(slices):
        chosen = suspects.where(f"pmod(xxhash64(queue, generation, block), {slices}) = {at}")
        table = chosen.select("queue", "generation", "first", "count").toArrow()
        by_queue: dict[tuple[str, int], tuple[Any, Any]] = {}
        pairs = table.group_by(["queue", "generation"]).aggregate([]).to_pylist()
        for pair in pairs:
            mine = table.filter(
                pc.and_(pc.equal(table["queue"], pair["queue"]), pc.equal(table["generation"], pair["generation"]))
            ).sort_by("first")
            first = mine["first"].combine_chunks().to_numpy()
            by_queue[pair["queue"], pair["generation"]] = (first, first + mine["count"].combine_chunks().to_numpy())
        yield by_queue


def _details(journal: DataFrame, suspects: dict[tuple[str, int], tuple[Any, Any]]) -> DataFrame:
    """A row for each event of each suspect."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            for (queue, generation), (starts, ends) in suspects.items():
                mine = table.filter(pc.and_(pc.equal(table["queue"], queue), pc.equal(table["generation"], generation)))
                if not mine.num_rows:
                    continue
                first, count = (mine[name].combine_chunks().to_numpy() for name in ("first", "count"))
                index, ids = overlaps(first, count, starts, ends)
                if len(ids):
                    rows = mine.take(pa.array(index)).drop_columns(["first", "count"])
                    rows = rows.add_column(2, "id", pa.array(ids).cast(pa.string()))
                    yield from rows.to_batches()

    rows = journal.where("first IS NOT NULL").select("queue", "generation", "first", "count", *DETAIL)
    return rows.mapInArrow(run, DETAILS)


class Court(msgspec.Struct, frozen=True):
    """All that lives are judged by. `speaking`: incarnations of which a later audit may hear more."""

    rules: Rules
    windows: list[Window]
    newest: Newest
    speaking: frozenset[tuple[str, str]]

    def sentence(self, queue: str, generation: int, id: str, told: list[Told]) -> tuple[list[Finding], int | None]:
        """What is found, and the version with which the life is over. What only an incarnation can explain that still
        speaks is left to the next audit: the life goes on until then."""
        due_s, past = due_of(id), self.newest.is_past(queue, generation)
        found = judge(queue, told, self.rules, self.windows, due_s, past)
        version = over(told, past)
        if self.speaking and any(each.fault == "unknown" for each in found):
            sure = [each for each in self.windows if each.ends or (each.node, each.incarnation) not in self.speaking]
            if judge(queue, told, self.rules, sure, due_s, past) != found:
                return [each for each in found if each.fault != "unknown"], None
        return found, version


def _verdicts(details: DataFrame, court: Court) -> DataFrame:
    lives = details.groupBy("queue", "generation", "id").agg(
        _expr(f"collect_list(struct({', '.join(DETAIL)})) AS told")
    )

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from _table(_of_lives(batch.to_pylist(), court))

    return lives.mapInArrow(run, VERDICTS)


def _of_lives(lives: Iterable[dict[str, Any]], court: Court) -> Iterator[tuple[Any, ...]]:
    for life in lives:
        told = [Told(*(each[name] for name in DETAIL)) for each in life["told"]]
        queue, generation, id = life["queue"], life["generation"], life["id"]
        found, version = court.sentence(queue, generation, id, told)
        for each in found:
            yield (each.fault, PROMISES.get(each.fault), queue, generation, id, each.at, each.says, None)
        if version is not None:
            yield (SETTLED, None, queue, generation, id, None, "", version)


def due_of(id: str) -> float | None:
    """Ids of timed queues say when they are due, or a little later; numbers say nothing."""
    return None if id.isdecimal() and len(id) < 32 else ms_of_ticks(ticks_of(parse_id(id))) / 1000


def _table(rows: Iterator[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    columns = list(zip(*rows, strict=True)) or [()] * 8
    types = (pa.string(), pa.int32(), pa.string(), pa.int64(), pa.string(), pa.float64(), pa.string(), pa.int32())
    names = ("fault", "promise", "queue", "generation", "id", "at", "says", "version")
    arrays = [pa.array(column, type) for column, type in zip(columns, types, strict=True)]
    yield from pa.table(arrays, names=list(names)).to_batches()
