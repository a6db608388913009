"""Queues as tables and streams of Spark: what was put is read, what is written is there once, whatever is repeated."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.nodes import bodies, numbered, serving

from capellini import Client, connect
from capellini.model.errors import Conflict, Invalid, NotFound, Unavailable, WrongKind
from capellini.pipeline.jobs.archive import Archive, archive, compact, drop_days, read_archive
from capellini.pipeline.jobs.load import Load, Unload, load, unload
from capellini.pipeline.jobs.replay import Replay, counted, replay
from capellini.pipeline.jobs.running import Summary, plainly
from capellini.pipeline.source.data import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline") / "store"


@pytest.fixture(scope="module")
def at(folder: Path) -> Iterator[str]:
    with serving(folder) as address:
        yield address


@pytest.fixture(scope="module")
def client(at: str) -> Iterator[Client[bytes]]:
    with connect(at) as found:
        yield found


@pytest.fixture(scope="module")
def spark_here(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def table(spark: SparkSession, at: str, queue: str, **options: Any) -> DataFrame:
    return spark.read.format("capellini").options(at=at, queue=queue, **options).load()


def found(spark: SparkSession, at: str, queue: str) -> list[bytes]:
    """The bodies of a log queue, sorted."""
    return sorted(bytes(row["body"]) for row in table(spark, at, queue, columns="body").collect())


def write(frame: DataFrame, at: str, queue: str, **options: str) -> None:
    with plainly():
        frame.write.format("capellini").options(at=at, queue=queue, **options).mode("append").save()


def messages(spark: SparkSession, count: int, parts: int = 3) -> DataFrame:
    return spark.range(0, count, 1, parts).selectExpr("concat('message ', id) AS body")


def test_a_log_queue_is_read_from_its_node_and_from_its_folder(
    spark_here: SparkSession, at: str, client: Client[bytes], folder: Path
) -> None:
    client.create_queue("plain", "log")
    client.put_many("plain", numbered(range(500)), attributes={"colour": "red"})
    client.put_many("plain", numbered(range(500, 700)))
    for where in (at, f"rocks:{folder}"):
        rows = table(spark_here, where, "plain", columns="*", task_rows="150").collect()
        assert sorted(bytes(row["body"]) for row in rows) == sorted(numbered(range(700))), where
        assert sum(row["attributes"] == {"colour": "red"} for row in rows) == 500
        assert {row["id"] for row in rows} == {f"{row['extent']}:{row['number']}" for row in rows}
    peeked = client.peek("plain", 10)
    assert {one.id for one in peeked} <= {row["id"] for row in rows}
    put_at = sorted(row["put_at"] for row in rows)
    middle = put_at[500].timestamp()
    since = table(spark_here, at, "plain", since=repr(middle)).count()
    assert since + table(spark_here, at, "plain", until=repr(middle)).count() == 700
    pushed = table(spark_here, at, "plain", filters="push").where(f"put_at >= timestamp_millis({round(middle * 1000)})")
    assert pushed.count() == since


def test_a_write_that_is_run_again_under_its_name_adds_nothing(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("written", "log")
    marker = str(tmp_path / "second")

    def fail_late(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if not Path(marker).exists() and batch.column(0)[-1].as_py() == "message 39999":
                raise RuntimeError("the first attempt ends here")

    frame = messages(spark_here, 40_000, 2).mapInArrow(fail_late, "body string")
    with pytest.raises(Exception, match="the first attempt ends here"):
        write(frame, at, "written", job="monday")
    assert 10_000 < len(found(spark_here, at, "written")) < 40_000
    Path(marker).touch()
    write(frame, at, "written", job="monday")
    write(frame, at, "written", job="monday")
    assert found(spark_here, at, "written") == sorted(numbered(range(40_000)))
    write(messages(spark_here, 10), at, "written", job="tuesday")
    assert len(found(spark_here, at, "written")) == 40_010


def test_a_source_is_found_in_any_thread(spark_here: SparkSession, at: str, client: Client[bytes]) -> None:
    """Each has a thread of its own in Java, and so has the main one after an interrupt."""
    client.create_queue("threaded", "log")
    frame = spark_here.range(3).selectExpr("string(id) AS body")

    def put() -> None:
        register(spark_here)
        write(frame, at, "threaded")

    with ThreadPoolExecutor(1) as thread:
        thread.submit(put).result()
    assert found(spark_here, at, "threaded") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", ["work", "timed"])
def test_work_and_timed_queues_take_each_row_once(
    spark_here: SparkSession, at: str, client: Client[bytes], kind: str
) -> None:
    client.create_queue(f"into-{kind}", kind)
    for _ in range(2):
        write(messages(spark_here, 300), at, f"into-{kind}", job="once")
    own = messages(spark_here, 2).selectExpr("body", "concat('key ', body) AS key")
    for name in ("one", "other"):
        write(own, at, f"into-{kind}", job=name)
    wanted = sorted(numbered(range(300)) + numbered(range(2)))
    assert sorted(bodies(client, f"into-{kind}", len(wanted))) == wanted
    assert client.get(f"into-{kind}", 10) == []


def test_a_stream_from_queue_to_queue_repeats_a_batch_without_harm(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("from", "log")
    client.create_queue("to", "log")
    write(messages(spark_here, 5_000), at, "from")

    def run() -> list[int]:
        rows = spark_here.readStream.format("capellini").options(at=at, queue="from", max_rows="2000").load()
        into = rows.select("body").writeStream.format("capellini").options(at=at, queue="to")
        query = into.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        return [each.numInputRows for each in query.recentProgress if each.numInputRows]

    assert run() == [2_000, 2_000, 1_000]
    newest = max((tmp_path / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
    newest.unlink()  # as if it had been killed before it said that it was done
    newest.with_name(f".{newest.name}.crc").unlink()
    assert run() == [1_000]
    write(messages(spark_here, 7), at, "from")
    assert run() == [7]
    assert found(spark_here, at, "to") == sorted(numbered(range(5_000)) + numbered(range(7)))


@pytest.mark.parametrize("kind", ["log", "work"])
def test_several_writes_in_a_micro_batch_are_all_there_and_named_ones_once(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path, kind: str
) -> None:
    source, target = f"forks-{kind}", f"forked-{kind}"
    client.create_queue(source, "log")
    client.create_queue(target, kind)
    write(messages(spark_here, 40, 1), at, source)
    begun: list[int] = []

    def fork(rows: DataFrame, number: int) -> None:
        begun.append(number)
        for job in ("good", "bad"):
            write(rows.selectExpr(f"concat(string(body), ' {job}') AS body"), at, target, job=job)
        if len(begun) == 2:
            raise RuntimeError("killed before it is written down")
        if len(begun) == 3:
            write(rows.selectExpr("concat(string(body), ' unnamed') AS body"), at, target)

    def run() -> None:
        rows = spark_here.readStream.format("capellini").options(at=at, queue=source, max_rows="20").load()
        into = rows.writeStream.foreachBatch(fork).option("checkpointLocation", str(tmp_path))
        into.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="killed before"):
        run()
    run()
    assert begun == [0, 1, 1]
    wanted = [f"message {n} {job}".encode() for n in range(40) for job in ("good", "bad")]
    wanted += [f"message {n} unnamed".encode() for n in range(20, 40)]
    assert (found(spark_here, at, target) if kind == "log" else sorted(bodies(client, target, 100))) == sorted(wanted)


def test_a_purged_queue_ends_its_streams(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("purged", "log")
    wanted = Archive(at, "purged", str(tmp_path / "archive"), str(tmp_path / "checkpoint"))
    client.put_many("purged", numbered(range(3)))
    assert archive(spark_here, wanted).rows == 3
    client.purge_queue("purged")
    with pytest.raises(Conflict, match="generation"):
        archive(spark_here, wanted)


# ---- jobs


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_what_is_written_into_files_comes_back_as_it_was(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path, form: str
) -> None:
    odd = [
        "plain",
        "one\ntwo\r\nthree",
        'say "hi", you',
        "back\\slash",
        'a\\" quote',
        "",
        " wide ",
        "ünï\u2028",
        "#c",
        "null",
    ]
    attributes = {"a": 'x "y", z\n1', "ü": ""}
    client.create_queue(f"odd-{form}", "log")
    client.create_queue(f"odd-{form}-back", "log")
    client.put_many(f"odd-{form}", [each.encode() for each in odd], attributes=attributes)
    assert unload(spark_here, Unload(at, f"odd-{form}", str(tmp_path / "files"), form)) == len(odd)
    load(spark_here, Load(str(tmp_path / "files"), at, f"odd-{form}-back", str(tmp_path / "state"), body="body"))
    rows = table(spark_here, at, f"odd-{form}-back").collect()
    assert sorted(bytes(row["body"]).decode() for row in rows) == sorted(odd)
    assert all(row["attributes"] == attributes for row in rows)


def test_files_say_when_messages_are_due_and_what_they_are_called(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("due", "timed")
    tomorrow = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)
    (tmp_path / "a.csv").write_text(
        "body,due_at,key,attributes\n"
        f'"say ""one"", two",{tomorrow}T08:00:00Z,1,"{{""a"":""b""}}"\n'
        f"plain,{tomorrow} 08:00:00,2,\n"
    )
    (tmp_path / "a.jsonl").write_text(
        f'{{"body":"json","due_at":"{tomorrow}T09:00:00+01:00","key":1,"attributes":{{"n":7}}}}\n'
    )
    for name in ("a.csv", "a.jsonl"):
        load(spark_here, Load(str(tmp_path / name), at, "due", str(tmp_path / f"state-{name}"), body="body"))
    rows = {bytes(row["body"]): row for row in table(spark_here, at, "due").collect()}
    assert {body: row["attributes"] for body, row in rows.items()} == {b'say "one", two': {"a": "b"}, b"plain": None}
    eight = datetime.datetime.combine(tomorrow, datetime.time(8), datetime.UTC)
    assert {row["due_at"].timestamp() // 60 for row in rows.values()} == {
        eight.timestamp() // 60
    }  # of one key: the first
    (tmp_path / "later.csv").write_text("body,due_at\nx,soon\n")
    with pytest.raises(Unavailable, match="soon"):
        load(spark_here, Load(str(tmp_path / "later.csv"), at, "due", str(tmp_path / "state-later"), body="body"))


def test_files_whose_columns_stand_otherwise_are_refused(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("mixed", "log")
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.csv").write_text("body,colour\none,red\n")
    (files / "b.csv").write_text("colour,body\nblue,two\n")
    with pytest.raises(Unavailable, match=r"b\.csv cannot be read: .*does not conform"):
        load(spark_here, Load(str(files), at, "mixed", str(tmp_path / "state")))
    assert b"blue" not in found(spark_here, at, "mixed")


def test_files_are_loaded_once_and_a_new_one_later(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("loaded", "log")
    files = tmp_path / "files"
    files.mkdir()
    (files / "one.jsonl").write_bytes(b"\n".join(numbered(range(2_000))) + b"\n")
    wanted = Load(str(files), at, "loaded", str(tmp_path / "checkpoint"))
    seen: list[int] = []
    assert load(spark_here, wanted, lambda rows, left: seen.append(rows)).rows == 2_000 == sum(seen)
    assert load(spark_here, wanted).rows == 0
    (files / "two.jsonl").write_bytes(b"\n".join(numbered(range(2_000, 2_100))))
    assert load(spark_here, wanted).rows == 100
    assert found(spark_here, at, "loaded") == sorted(numbered(range(2_100)))
    with pytest.raises(Conflict, match="of another job"):
        load(spark_here, Load(str(files), at, "loaded", str(tmp_path / "checkpoint"), body="x"))


def test_one_file_is_loaded(spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path) -> None:
    """Spark makes streams of folders and patterns alone: of one file, with others beside it."""
    client.create_queue("of-one-file", "log")
    for name in ("a{1}.jsonl", "a1.jsonl", "ba{1}.jsonl"):
        (tmp_path / name).write_text(f'"{name}"\n')
    done = load(spark_here, Load(str(tmp_path / "a{1}.jsonl"), at, "of-one-file", str(tmp_path / "state")))
    assert done.rows == 1 and found(spark_here, at, "of-one-file") == [b'"a{1}.jsonl"']


def test_tables_become_messages_and_messages_files(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("rows", "log")
    frame = spark_here.range(50).selectExpr("id", "concat('name ', id) AS name")
    frame.write.parquet(str(tmp_path / "parquet"))
    frame.write.option("header", True).csv(str(tmp_path / "csv"))
    load(spark_here, Load(str(tmp_path / "parquet"), at, "rows", str(tmp_path / "c1")))
    load(spark_here, Load(str(tmp_path / "csv"), at, "rows", str(tmp_path / "c2"), body="name"))
    wanted = [f'{{"id":{at},"name":"name {at}"}}'.encode() for at in range(50)]
    assert found(spark_here, at, "rows") == sorted(wanted + [f"name {at}".encode() for at in range(50)])
    frame.selectExpr("*", "1 AS more").write.option("header", True).mode("overwrite").csv(str(tmp_path / "csv"))
    with pytest.raises(Conflict, match="its columns is"):
        load(spark_here, Load(str(tmp_path / "csv"), at, "rows", str(tmp_path / "c2"), body="name"))
    for form in ("parquet", "json", "csv", "text"):
        assert unload(spark_here, Unload(at, "rows", str(tmp_path / f"out-{form}"), form)) == 100
    with pytest.raises(Conflict, match="there already"):
        unload(spark_here, Unload(at, "rows", str(tmp_path / "out-text"), "text"))
    lines = spark_here.read.text(str(tmp_path / "out-text")).collect()
    assert sorted(row[0].encode() for row in lines) == found(spark_here, at, "rows")
    with pytest.raises(NotFound, match="nothing at"):
        load(spark_here, Load(str(tmp_path / "none"), at, "rows", str(tmp_path / "c3")))
    with pytest.raises(NotFound, match="no queue"):
        load(spark_here, Load(str(tmp_path / "csv"), at, "haunted", str(tmp_path / "c4")))


def test_an_archive_has_each_message_once_and_is_replayed_once(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("kept", "log")
    client.create_queue("again", "log")
    client.put_many("kept", numbered(range(300)), attributes={"colour": "red"})
    client.put_many("kept", numbered(range(300, 1_000)))
    path = tmp_path / "archive"
    wanted = Archive(at, "kept", str(path), str(tmp_path / "checkpoint"), max_rows=400)
    assert archive(spark_here, wanted) == Summary(1_000, 3, pytest.approx(0, abs=1e9))
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("2", ".2.crc"):
        (commits / name).unlink()
    assert archive(spark_here, wanted).rows == 200
    kept = read_archive(spark_here, str(path))
    assert kept.count() == 1_000 == kept.select("extent", "number").distinct().count()
    assert len(list(path.glob("queue=kept/day=*/batch=*"))) == 3

    some = Replay(at, "again", str(tmp_path / "r1"), str(path), attributes={"colour": "red"}, where="number % 2 = 0")
    told = counted(spark_here, some).collect()
    wanted_count = kept.where("attributes['colour'] = 'red' AND number % 2 = 0").count()
    assert sum(row["messages"] for row in told) == wanted_count > 0
    for _ in range(2):
        replay(spark_here, some)
    assert len(found(spark_here, at, "again")) == wanted_count
    replay(spark_here, Replay(at, "again", str(tmp_path / "r2"), from_queue="kept", per_s=5_000.0))
    assert len(found(spark_here, at, "again")) == wanted_count + 1_000
    with pytest.raises(Invalid, match="archive, or the log queue"):
        replay(spark_here, Replay(at, "again", str(tmp_path / "r3")))

    day = sorted(path.glob("queue=kept/day=*"))[0]
    shutil.copytree(day, day.with_name("day=2001-01-01"))
    assert drop_days(spark_here, str(path), datetime.date(2020, 1, 1)) == ["2001-01-01"]
    assert day.exists()


def test_an_archive_in_parquet_is_compacted_and_its_stream_a_replay_and_retention_go_on(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    def rows() -> list[tuple[Any, ...]]:
        kept = read_archive(spark_here, str(path)).select("queue", "day", "extent", "number", "put_at", "body")
        return sorted(map(tuple, kept.collect()))

    def uncommit(state: str, batch: int) -> None:
        """As if it had been killed when the batch was done, and before that was written down."""
        for name in (f"{batch}", f".{batch}.crc"):
            (tmp_path / state / "commits" / name).unlink(missing_ok=True)

    def ended(rows: int, left: int | None) -> None:
        raise InterruptedError

    client.create_queue("in-parquet", "log")
    client.create_queue("from-parquet", "log")
    client.put_many("in-parquet", numbered(range(210)), attributes={"a": "b"})
    path = tmp_path / "archive"
    wanted = Archive(at, "in-parquet", str(path), str(tmp_path / "archiving"), max_rows=70)
    assert archive(spark_here, wanted).batches == 3
    assert (path / "_writing").exists(), "who writes takes the lock"
    replayed = Replay(at, "from-parquet", str(tmp_path / "replaying"), str(path))
    with pytest.raises(InterruptedError):
        replay(spark_here, replayed, ended)
    uncommit("replaying", 0)
    before = rows()
    compact(spark_here, str(path))
    assert rows() == before
    assert len(list(path.glob("queue=*/day=*/batch=*"))) == 2, "the last batch may come again"
    uncommit("archiving", 2)
    client.put_many("in-parquet", numbered(range(210, 280)))
    assert archive(spark_here, wanted).batches == 2
    compact(spark_here, str(path))
    after = rows()
    assert [each for each in after if each in before] == before and len(after) == 280
    for _ in range(2):
        replay(spark_here, replayed)
    assert found(spark_here, at, "from-parquet") == sorted(numbered(range(210))), "what was there when it began"
    assert not list(path.glob("_replays/*/*"))
    assert drop_days(spark_here, str(path), datetime.date(9999, 1, 1)) != []
    assert archive(spark_here, wanted).rows == 0


@pytest.mark.long
def test_an_archive_in_delta_loses_old_days_and_small_files_and_no_message(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("in-delta", "log")
    client.create_queue("from-delta", "log")
    path = str(tmp_path / "delta")
    wanted = Archive(at, "in-delta", path, str(tmp_path / "checkpoint"), "delta", max_rows=40)
    archive(spark_here, wanted)
    assert drop_days(spark_here, path, datetime.date(2020, 1, 1)) == []
    compact(spark_here, path)  # nothing is there yet
    client.put_many("in-delta", numbered(range(100)))
    assert archive(spark_here, wanted).batches == 3
    old = read_archive(spark_here, path).where("number = 1").selectExpr("* EXCEPT (day)", "'2001-01-01' AS day")
    old.write.format("delta").mode("append").save(path)
    replayed = Replay(at, "from-delta", str(tmp_path / "r"), path, where="day > '2020'")
    replay(spark_here, replayed)
    spark_here.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = '0 hours')")
    assert drop_days(spark_here, path, datetime.date(2020, 1, 1)) == ["2001-01-01"]
    compact(spark_here, path)
    assert len(read_archive(spark_here, path).inputFiles()) == 1
    assert len(list(Path(path).glob("queue=*/day=*/*.parquet"))) == 1
    client.put_many("in-delta", numbered(range(100, 120)))
    assert archive(spark_here, wanted).rows == 20
    kept = sorted(bytes(row["body"]) for row in read_archive(spark_here, path).collect())
    assert kept == sorted(numbered(range(120)))
    replay(spark_here, replayed)  # goes on over what was dropped and compacted
    assert found(spark_here, at, "from-delta") == sorted(numbered(range(120)))


def test_what_is_asked_for_wrongly_is_said_in_one_line(
    spark_here: SparkSession, at: str, client: Client[bytes], tmp_path: Path
) -> None:
    client.create_queue("other-kind", "work")
    with pytest.raises(WrongKind, match="is a work queue"):
        archive(spark_here, Archive(at, "other-kind", str(tmp_path / "a"), str(tmp_path / "c")))
    small = Archive(at, "small", str(tmp_path / "small"), str(tmp_path / "of-small"))
    client.create_queue("small", "log")
    archive(spark_here, small)
    with pytest.raises(NotFound, match="nothing in the archive"):
        replay(spark_here, Replay(at, "small", str(tmp_path / "r"), small.path))
    client.put_many("small", numbered(range(1)))
    archive(spark_here, small)
    with pytest.raises(Invalid, match="not a folder of this machine"):
        compact(spark_here, "s3a://kept/small")
    with pytest.raises(NotFound, match="no queue"), plainly():
        table(spark_here, at, "haunted").count()
    with pytest.raises(Invalid, match="cannot be overwritten"), plainly():
        messages(spark_here, 1).write.format("capellini").options(at=at, queue="small").mode("overwrite").save()
