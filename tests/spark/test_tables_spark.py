"""Work and timed queues, dead letters, counters and the journal as tables, and what jobs make of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.spark.nodes import DEADLINE_S, bodies, numbered, serving

from capellini import Client, connect
from capellini.cli import pipeline as verbs
from capellini.model.errors import Conflict, Invalid, NotFound, WrongKind
from capellini.model.options import JOURNAL
from capellini.model.service import Put
from capellini.pipeline.audit.job import Options, audit
from capellini.pipeline.jobs import rollup as job
from capellini.pipeline.jobs.archive import Archive, archive, read_archive, snapshot
from capellini.pipeline.jobs.letters import Letters, described, grouped, groups, redrive
from capellini.pipeline.jobs.replay import Replay, replay
from capellini.pipeline.jobs.rollup import Rollup, collect, daily, rollup
from capellini.pipeline.jobs.running import plainly
from capellini.pipeline.journal.chapters import WAIT_S
from capellini.pipeline.journal.columns import COLUMNS, read_journal
from capellini.pipeline.journal.generator import Recipe, generated
from capellini.pipeline.report.page import page
from capellini.pipeline.report.tables import report
from capellini.pipeline.source.data import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables") / "store"


@pytest.fixture(scope="module")
def at(folder: Path) -> Iterator[str]:
    with serving(folder) as address:
        yield address


@pytest.fixture(scope="module")
def client(at: str) -> Iterator[Client[bytes]]:
    with connect(at) as found:
        yield found


def table(spark: SparkSession, at: str, **options: str) -> DataFrame:
    register(spark)
    return spark.read.format("capellini").options(at=at, **options).load()


def test_a_work_queue_shows_what_is_unfinished_and_in_which_state(
    spark: SparkSession, at: str, client: Client[bytes], folder: Path, tmp_path: Path
) -> None:
    client.create_queue("work", "work", bucket_size=100)
    client.put_many("work", numbered(range(250)), attributes={"a": "b"})
    client.put("work", b"later", delay_s=600.0)
    acked = client.get("work", 120)
    client.ack_many("work", acked)
    held = client.get("work", 10, visibility_s=600.0)
    gone = {message.raw for message in acked}
    for where in (at, f"rocks:{folder}"):
        rows = table(spark, where, queue="work", columns="*").collect()
        assert {bytes(row["body"]) for row in rows} == ({*numbered(range(250)), b"later"} - gone)
        assert len(rows) == 131
        taken = [row for row in rows if row["state"] == "in_flight"]
        assert {bytes(row["body"]) for row in taken} == {message.raw for message in held}
        assert {row["id"] for row in taken} == {message.id for message in held}
        assert all(row["deliveries"] == 1 for row in taken)
        assert sum(row["attributes"] == {"a": "b"} for row in rows) == 130
        (delayed,) = [row for row in rows if bytes(row["body"]) == b"later"]
        assert (delayed["visible_at"] - delayed["put_at"]).total_seconds() == 600
    with pytest.raises(WrongKind, match="journal=bodies"):
        archive(spark, Archive(at, "work", str(tmp_path / "a"), str(tmp_path / "c")))
    client.change_queue("work", journal="bodies")
    client.put_many("work", numbered(range(300, 320)), attributes={"c": "d"})
    kept = Archive(at, "work", str(tmp_path / "a"), str(tmp_path / "c"))
    for _ in range(2):
        archive(spark, kept)
    rows = read_archive(spark, kept.path).collect()
    assert sorted(bytes(row["body"]) for row in rows) == numbered(range(300, 320))
    assert all((row["queue"], row["attributes"]) == ("work", {"c": "d"}) for row in rows)
    assert len({row["id"] for row in rows}) == 20
    path = str(tmp_path / "snapshots")
    assert snapshot(spark, Archive(at, "work", path, "")) == 151
    assert read_archive(spark, path).where("queue = 'work'").count() == 151


def test_a_timed_queue_shows_what_is_to_come_and_what_waits(
    spark: SparkSession, at: str, client: Client[bytes], folder: Path
) -> None:
    client.create_queue("timed", "timed", granularity="minute")
    soon, far = time.time() - 1, time.time() + 86_400
    client.put_many("timed", numbered(range(60)), due=far)
    client.put_many("timed", numbered(range(100, 140)), due=soon)
    acked: list[Any] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(acked) < 15 and time.monotonic() < deadline_s:
        acked += client.get("timed", 15 - len(acked), wait_s=1.0)
    client.ack_many("timed", acked)
    gone = {message.raw for message in acked}
    wanted = {*numbered(range(60)), *numbered(range(100, 140))} - gone
    for where in (at, f"rocks:{folder}"):
        rows = table(spark, where, queue="timed").collect()
        assert {bytes(row["body"]) for row in rows} == wanted and len(rows) == 85
        assert sum(abs(row["due_at"].timestamp() - far) < 1 for row in rows) == 60


def test_a_timed_queue_that_has_fewer_shards_now_shows_what_lies_in_the_others(
    spark: SparkSession, at: str, client: Client[bytes], folder: Path
) -> None:
    client.create_queue("narrowed", "timed", shards=12)
    for hour in range(30):
        client.put_many("narrowed", numbered([hour]), due=time.time() + 7_200 + 3_600 * hour)
    deadline_s = time.monotonic() + DEADLINE_S
    while any(not each.holder for each in client.shards("narrowed")) and time.monotonic() < deadline_s:
        client.get("narrowed", 1, wait_s=0.2)
    client.change_queue("narrowed", shards=1)
    for where in (at, f"rocks:{folder}"):
        rows = table(spark, where, queue="narrowed", columns="body").collect()
        assert sorted(bytes(row["body"]) for row in rows) == sorted(numbered(range(30)))


def test_all_that_was_put_into_a_timed_queue_with_bodies_is_archived_once_whatever_became_of_it(
    spark: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("dated", "timed", granularity="minute", journal="bodies")
    for queue in ("put-again", "put-later"):
        client.create_queue(queue, "timed")
    soon, far = time.time() - 1, round(time.time()) + 86_400.125
    put = client.put_many("dated", numbered(range(20)), due=soon, attributes={"a": "b"})
    put += client.put_many("dated", numbered(range(20, 30)), due=far)
    ids = [each.id for each in put if isinstance(each, Put)]
    kept = Archive(at, "dated", str(tmp_path / "a"), str(tmp_path / "c"), max_rows=12)
    assert archive(spark, kept).batches > 1
    assert sorted(bodies(client, "dated", 20)) == sorted(numbered(range(20)))  # acked: gone from the queue
    client.cancel("dated", ids[25])
    once, again = (client.put("dated", b"message 30", due=far, key="once") for _ in range(2))
    assert once == again
    ids.append(once)
    for _ in range(2):
        archive(spark, kept)
    rows = read_archive(spark, kept.path).collect()
    assert sorted((row["id"], bytes(row["body"])) for row in rows) == sorted(zip(ids, numbered(range(31)), strict=True))
    assert sum(row["attributes"] == {"a": "b"} for row in rows) == 20
    for _ in range(2):
        replay(spark, Replay(at, "put-again", str(tmp_path / "r"), kept.path))
    dues = [(body, round(far * 1000)) for body in sorted(numbered(range(20, 31)))]
    assert sorted(bodies(client, "put-again", 20)) == sorted(numbered(range(20))), "a due that is past is due at once"
    assert client.get("put-again", 10) == []
    assert due_ms(spark, at, "put-again") == dues
    path = str(tmp_path / "snapshot")
    assert snapshot(spark, Archive(at, "put-again", path, "")) == 11
    replay(spark, Replay(at, "put-later", str(tmp_path / "s"), path))
    assert due_ms(spark, at, "put-later") == dues


def due_ms(spark: SparkSession, at: str, queue: str) -> list[tuple[bytes, int]]:
    rows = table(spark, at, queue=queue, columns="body,due_at").collect()
    return sorted((bytes(row["body"]), round(row["due_at"].timestamp() * 1000)) for row in rows)


def assert_all_letters_are_never_held(spark: SparkSession) -> None:
    """A group may have millions, in whatever order they come: the samples are the oldest."""
    letters = "string(1000 - id) AS id;timestamp_seconds(id) AS put_at;binary('x') AS body;1 AS deliveries"
    rows = spark.range(1_000).selectExpr(*letters.split(";"), "map('a', 'b') AS attributes", "'q' AS origin")
    found = grouped(described(rows, Letters("", "")), Letters("", ""))
    assert [each["id"] for each in found.collect()[0]["samples"]] == ["1", "2", "3"]


def test_dead_letters_are_grouped_by_where_they_were_and_what_they_look_like(
    spark: SparkSession, at: str, client: Client[bytes]
) -> None:
    client.create_queue("lost", "work")
    client.create_queue("orders", "work", dead_letters="lost", delivery_limit=1)
    client.put_many("orders", [b'{"order": %d, "sum": 3}' % at for at in range(30)], attributes={"shop": "one"})
    client.put_many("orders", [b"order %d is broken" % at for at in range(5)])
    deadline_s = time.monotonic() + DEADLINE_S
    while client.statistics("lost").ready < 35 and time.monotonic() < deadline_s:
        if messages := client.get("orders", 100, wait_s=0.1):
            client.nack_many("orders", messages, 0.0)
    rows = groups(spark, Letters(at, "orders")).collect()
    found = [(row["letters"], row["origin"], row["shape"], row["attributes"]) for row in rows]
    assert found == [(30, "orders", "{order, sum}", '{"shop":"one"}'), (5, "orders", "order N is broken", "{}")]
    assert len(rows[0]["samples"]) == 3 and rows[0]["samples"][0]["body"].startswith('{"order"')
    assert_all_letters_are_never_held(spark)
    (one,) = groups(spark, Letters(at, "orders", by=("origin",))).collect()
    assert one["letters"] == 35
    client.put("lost", b"put here, this is broken")  # it came from nowhere, and stays
    broken = Letters(at, "orders", where="shape LIKE '%broken' AND attributes = '{}'")
    assert [redrive(spark, broken), redrive(spark, broken)] == [5, 0]
    assert client.statistics("lost").ready == 31
    assert {each.body[:5] for each in client.peek("orders", 10)} == {b"order"}
    with pytest.raises(Invalid, match="cannot be grouped by"):
        groups(spark, Letters(at, "orders", by=("colour",)))


def test_dead_letters_of_a_group_are_its_own_and_go_back_to_it(
    spark: SparkSession, at: str, client: Client[bytes]
) -> None:
    client.create_queue("fed", "log")
    for group in ("g", "h"):
        client.groups.create("fed", group, delivery_limit=1)
    client.put_many("fed", [b'{"order": 1}', b"two", b"three"])
    deadline_s = time.monotonic() + DEADLINE_S
    while len(client.dead("fed@g")) < 3 and time.monotonic() < deadline_s:
        if messages := client.get("fed@g", 10, wait_s=0.1):
            client.nack_many("fed@g", messages, 0.0)
    found = groups(spark, Letters(at, "fed@g", by=("origin", "shape"))).collect()
    assert sorted((row["origin"], row["shape"]) for row in found) == [
        ("fed@g", "three"), ("fed@g", "two"), ("fed@g", "{order}")
    ]  # fmt: skip
    chosen = Letters(at, "fed@g", where="shape = 'two'")
    assert [redrive(spark, chosen), redrive(spark, chosen)] == [1, 0]
    assert [each.body for each in client.get("fed@g", 10, wait_s=10.0)] == [b"two"]
    with pytest.raises(NotFound, match="fed@default has no dead letters"):
        redrive(spark, Letters(at, "fed"))
    client.create_queue("lone", "work")
    with pytest.raises(WrongKind, match="has no groups"):
        groups(spark, Letters(at, "lone@g"))


def test_counters_are_rolled_up_by_hour_and_day(
    spark: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    visitors: list[object] = [f"visitor {number}" for number in range(500)]
    client.counters.update("visits", [7, 5])
    client.counters.update("visitors.a", visitors[:300], "hll")
    client.counters.update("visitors.b", visitors[200:], "hll")
    path = str(tmp_path / "rolled")
    assert rollup(spark, Rollup(at, path, "2030-01-31T08")) >= 3
    client.counters.update("visits", [1])
    for hour in ("2030-01-31T09", "2030-01-31T09", "2030-02-01T00"):
        rollup(spark, Rollup(at, path, hour))
    days = {(row["name"], row["day"]): row for row in daily(spark, path).collect()}
    assert msgspec.json.decode(days["visits", "2030-01-31"]["value"]) == 13
    assert days["visits", "2030-01-31"]["hour"] == "2030-01-31T09"
    assert ("visits", "2030-02-01") in days
    both = daily(spark, path).where("day = '2030-01-31' AND name LIKE 'visitors.%'")
    estimate = both.selectExpr("hll_sketch_estimate(hll_union_agg(sketch)) AS n").collect()[0]["n"]
    assert abs(estimate - 500) < 25
    collected = {row["name"]: row["collected"] for row in collect(spark, at, "vis").collect()}
    assert set(collected) == {"visits", "visitors.a", "visitors.b"}


def test_counters_that_could_not_be_collected_are_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = [("a", 3, ""), ("b", 0, "a replica does not answer"), ("c", 2, "")]
    monkeypatch.setattr(verbs, "spark_on", lambda *_, **__: contextlib.nullcontext(spark))
    monkeypatch.setattr(job, "rollup", lambda *_: 3)
    monkeypatch.setattr(job, "collect", lambda *_: spark.createDataFrame(collected, job.COLLECTED))
    done = CliRunner().invoke(verbs.pipeline, ["rollup", str(tmp_path), "--collect"])
    assert done.exit_code == 0 and "collected 5 shards" in done.output
    assert "1 of 3 counters wait for a later collection: a replica does not answer" in done.output
    done = CliRunner().invoke(verbs.pipeline, ["rollup", str(tmp_path), "--collect", "--json"])
    assert done.stdout == '{"counters":3,"collected":5,"deferred":1}\n'


def test_the_journal_is_a_table_is_archived_as_events_by_day_and_audited(
    spark: SparkSession, at: str, client: Client[bytes], folder: Path, tmp_path: Path
) -> None:
    client.create_queue("told", "work")
    client.create_queue("logged", "log")
    client.put_many("told", numbered(range(20)))
    client.ack_many("told", client.get("told", 20))
    of_it = "queue = 'told' AND kind IN ('put', 'delivered', 'acked')"
    deadline_s = time.monotonic() + DEADLINE_S
    while table(spark, at, read="journal").where(of_it).count() < 3:  # about once a second
        assert time.monotonic() < deadline_s
    for where in (at, f"rocks:{folder}"):
        events = read_journal(spark, where).where(of_it).orderBy("number").collect()
        assert [(row["kind"], row["first"], row["count"]) for row in events] == [
            ("put", 0, 20), ("delivered", 0, 20), ("acked", 0, 20)
        ]  # fmt: skip
    path = str(tmp_path / "journal")
    assert archive(spark, Archive(at, JOURNAL, path, str(tmp_path / "state"))).rows > 0
    kept = read_journal(spark, path, days=True)
    assert kept.where(of_it).count() == 3
    summary, findings = audit(kept.where("queue IN ('told', '')").select(*COLUMNS), Options())
    assert (summary.lives, findings.count()) == (20, 0)
    with pytest.raises(Conflict, match="is an archive of journal"):
        archive(spark, Archive(at, "logged", path, str(tmp_path / "other")))
    with pytest.raises(WrongKind, match="the journal is a log queue"), plainly():
        table(spark, at, read="journal", queue="told").count()


class Looking(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1


def test_a_report_has_rates_waits_depth_and_poison_by_queue_and_hour(spark: SparkSession) -> None:
    journal, _ = generated(spark, Recipe(4_000, seed=9, faults={"lost": 3, "dead": 2}))
    archive = spark.createDataFrame([("work-0", {"colour": "red"})] * 3, "queue string, attributes map<string,string>")
    found = report(journal, archive)
    put = sum(row["put"] for row in found.hours)
    events = journal.where("kind = 'put'").selectExpr("sum(coalesce(`count`, 1)) AS n").collect()[0]["n"]
    assert put == events > 0
    assert sum(row["dead"] for row in found.hours) == 2
    assert all(0 <= row["wait_p50"] <= row["wait_p99"] <= row["life_p99"] for row in found.waits)
    timed = [row["wait_p99"] for row in found.waits if row["queue"].startswith("timed")]
    assert found.waits and timed and max(timed) < WAIT_S / 2, "what is waited for until the due is no delay"
    assert found.poison and all(row["deliveries"] > 1 for row in found.poison)
    assert found.attributes == [{"queue": "work-0", "attribute": "colour", "value": "red", "count": 3}]
    looking = Looking()
    looking.feed(page(found, "What <they> did"))
    queues = len({row["queue"] for row in found.hours})
    assert looking.tags["svg"] == 5 * queues and looking.tags["table"] == 3
    assert "What &lt;they&gt; did" in page(found, "What <they> did")


def test_a_report_counts_puts_once_after_a_seek_and_what_was_purged_no_more(spark: SparkSession) -> None:
    told = [
        (1, 10.0, "put", "feed/e", 1, 100), (2, 11.0, "acked", "feed@g/1/e", 1, 50),
        (3, 20.0, "put", "feed/f", 1, 7),
        (4, 4_000.0, "acked", "feed@g/2/e", 1, 100), (5, 20.0, "put", "jobs", 1, 1_000),
        (6, 8_000.0, "put", "jobs", 2, 3), (7, 20.0, "acked", "old", 1, 70),
    ]  # fmt: skip
    named = "number bigint, at double, kind string, queue string, generation bigint, count bigint"
    rest = ["'n' AS node", "'i' AS incarnation", "0L AS first", "string(null) AS id", "1 AS version", "'' AS detail"]
    journal = spark.createDataFrame(told, named).selectExpr("*", *rest).select(*COLUMNS)
    found = [(row["queue"], row["hour"][11:13], row["put"], row["depth"]) for row in report(journal).hours]
    assert found == [
        ("feed", "00", 7, 7), ("feed@g", "00", 100, 50), ("feed@g", "01", 0, 0),
        ("jobs", "00", 1_000, 1_000), ("jobs", "02", 3, 3), ("old", "00", 0, 0),
    ]  # fmt: skip
