"""What an audit costs: generated journals with planted faults, on 2 cores, in bounded memory.

    generator ─▶ Parquet (not measured) ─▶ audit ─▶ findings        all planted faults must be found, and nothing else

The smaller journal is audited first, so that both find Python workers and the compiler warm.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from capellini.bench.figures import Detail, Figure, judge
from capellini.pipeline.audit.job import Options, audit
from capellini.pipeline.journal.chapters import FAULTS
from capellini.pipeline.journal.columns import read_journal
from capellini.pipeline.journal.generator import Recipe, generated
from capellini.pipeline.session import Plan, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE: Final = "pipeline.audit_20M_s"
COST: Final = "pipeline.audit_cost_20M_vs_2M"
MEMORY_MB: Final = 3_072
OF_EACH: Final = 20  # faults planted


class Scale(msgspec.Struct, frozen=True):
    small: int
    large: int


FULL: Final = Scale(2_000_000, 20_000_000)
QUICK: Final = Scale(200_000, 2_000_000)


class Took(msgspec.Struct, frozen=True):
    events: int
    took_s: float

    @property
    def us(self) -> float:
        return self.took_s / self.events * 1e6


def measure(scale: Scale, wanted: list[str]) -> list[Figure]:
    spark = session(Plan("local[2]", memory_mb=MEMORY_MB, short=False))
    try:
        with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
            once(spark, Path(folder) / "warm", 20_000)
            small = once(spark, Path(folder) / "small", scale.small)
            large = once(spark, Path(folder) / "large", scale.large)
    finally:
        spark.stop()
    detail: Detail = {"events": large.events, "us_each": round(large.us, 2), "memory_mb": MEMORY_MB}
    as_20M_s = large.took_s * FULL.large / scale.large
    made = {
        LARGE: judge(LARGE, as_20M_s, dict(detail) | ({} if scale is FULL else {"scaled_from": scale.large})),
        COST: judge(COST, large.us / small.us, {"us_small": round(small.us, 2), "us_large": round(large.us, 2)}),
    }
    return [made[name] for name in wanted]


def once(spark: SparkSession, folder: Path, events: int) -> Took:
    """Generate, then audit; raises if what was planted is not what was found."""
    journal, planted = generated(spark, Recipe(events, seed=events % 1_000 + 7, faults=dict.fromkeys(FAULTS, OF_EACH)))
    journal.write.parquet(str(folder))
    columns = ["fault", "queue", "generation", "id"]
    wanted = {tuple(row) for row in planted.select(columns).collect()}
    began_s = time.perf_counter()
    summary, findings = audit(read_journal(spark, str(folder)), Options(drained=None))
    found = {tuple(row) for row in findings.select(columns).collect()}
    took_s = time.perf_counter() - began_s
    if found != wanted:
        raise AssertionError(f"{len(found)} faults were found, {len(wanted)} were planted")
    return Took(summary.events, took_s)


if __name__ == "__main__":
    for figure in measure(QUICK if sys.argv[1] == "quick" else FULL, sys.argv[2:]):
        print(msgspec.json.encode(figure).decode())
