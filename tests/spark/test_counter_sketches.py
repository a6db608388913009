"""Sketches that counters keep are read by Spark's own functions, and those that Spark makes by counters."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capellini.client.connecting import connect
from capellini.counters.states.distinct import Hll, Theta
from capellini.counters.states.spread import Frequent, Quantiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MANY = 20_000
VISITORS = [f"visitor-{at}" for at in range(MANY)]
LATENCIES = [float(at) for at in random.Random(1).sample(range(1, MANY + 1), MANY)]
ACCUMULATED = (  # what Spark wraps around such a sketch
    "named_struct('sketch', s, 'maxItemsTracked', 3072, 'itemDataType', cast(null AS string), "
    "'itemDataTypeDDL', 'item string not null')"
)
OFTEN = {"often": 500, "sometimes": 50}


@pytest.fixture(scope="module")
def sketches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, bytes]]:
    """By kind: the value and the sketch of a counter, written through the client and read back."""
    folder: Path = tmp_path_factory.mktemp("counted")
    with connect(f"rocks:{folder / 'store'}") as client:
        for at in range(0, MANY, 5_000):
            client.counters.update("hll", VISITORS[at : at + 5_000], "hll")
            client.counters.update("theta", VISITORS[at : at + 5_000], "theta")
            client.counters.update("quantiles", LATENCIES[at : at + 5_000], "quantiles")
        items: list[object] = [{"item": item, "weight": weight} for item, weight in OFTEN.items()]
        client.counters.update("frequent", [*items, "once"], "frequent")
        readings = [client.counters.read(kind, sketch=True) for kind in ("hll", "theta", "quantiles", "frequent")]
    found = {}
    for reading in readings:
        assert reading.sketch is not None
        found[reading.kind] = (reading.value, reading.sketch)
    return found


NEIGHBOURS = 0.02  # as far apart as two values that a sketch of this size keeps may be


def asked(spark: SparkSession, expression: str, sketch: bytes) -> Any:
    """What Spark makes of a sketch."""
    frame = spark.createDataFrame([(bytearray(sketch),)], "s binary")
    return frame.selectExpr(f"{expression} AS answer").collect()[0]["answer"]


@pytest.mark.parametrize("kind", ["hll", "theta"])
def test_spark_estimates_distinct_counts_as_counters_do(
    spark: SparkSession, sketches: dict[str, tuple[Any, bytes]], kind: str
) -> None:
    value, sketch = sketches[kind]
    estimate = asked(spark, f"{kind}_sketch_estimate(s)", sketch)
    assert estimate == round(value["estimate"])
    assert value["lower"] <= estimate <= value["upper"] and abs(estimate - MANY) < 0.05 * MANY


def test_spark_merges_a_counters_hll_with_its_own(spark: SparkSession, sketches: dict[str, tuple[Any, bytes]]) -> None:
    """Hashes agree: elements that both have seen count once."""
    half = spark.createDataFrame([(each,) for each in VISITORS[MANY // 2 :]], "v string")
    own = half.selectExpr("hll_sketch_agg(v) AS theirs").collect()[0]["theirs"]
    frame = spark.createDataFrame([(bytearray(sketches["hll"][1]), bytearray(own))], "ours binary, theirs binary")
    merged = frame.selectExpr("hll_sketch_estimate(hll_union(ours, theirs)) AS answer").collect()[0]["answer"]
    assert abs(merged - MANY) < 0.05 * MANY


def test_counters_read_what_spark_made(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(each, float(at)) for at, each in enumerate(VISITORS[:5_000])], "v string, n double")
    made = frame.selectExpr(
        "hll_sketch_agg(v) AS hll", "theta_sketch_agg(v) AS theta", "kll_sketch_agg_double(n) AS quantiles"
    ).collect()[0]
    for state in (Hll, Theta):
        found = state.decode(bytes(made[state.kind]), state.version)
        assert abs(found.value()["estimate"] - 5_000) < 250
        found.apply("one more")
        assert found.value()["estimate"] > 4_700
    quantiles = Quantiles.decode(bytes(made["quantiles"]), Quantiles.version)
    assert quantiles.value()["count"] == 5_000 and abs(quantiles.rank(2_500.0) - 0.5) < 0.05


@pytest.mark.parametrize("rank", [0.5, 0.9, 0.99])
def test_spark_reads_quantiles_as_counters_do(
    spark: SparkSession, sketches: dict[str, tuple[Any, bytes]], rank: float
) -> None:
    value, sketch = sketches["quantiles"]
    found = asked(spark, f"kll_sketch_get_quantile_double(s, {rank}D)", sketch)
    ours = Quantiles.decode(sketch, Quantiles.version)
    # The two libraries may take neighbours of what a sketch keeps, where a rank falls just between them.
    assert abs(ours.rank(found) - ours.rank(value["quantiles"][f"{rank:g}"])) < NEIGHBOURS
    assert abs(found - rank * MANY) < 0.05 * MANY
    assert asked(spark, "kll_sketch_get_n_double(s)", sketch) == MANY


def test_spark_reads_frequent_items_as_counters_do(spark: SparkSession, sketches: dict[str, tuple[Any, bytes]]) -> None:
    value, sketch = sketches["frequent"]
    found = asked(spark, f"approx_top_k_estimate({ACCUMULATED}, 2)", sketch)
    assert [(each["item"], each["count"]) for each in found] == list(OFTEN.items())
    assert [each["item"] for each in value["items"][:2]] == list(OFTEN)
    assert Frequent.decode(sketch, Frequent.version).value() == value
