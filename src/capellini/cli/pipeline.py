"""`capellini pipeline`: what happens to messages after the queue, on Spark. Installed by `capellini[spark]`.

Every verb runs on this machine unless `--master` says where; shows a moving line to people; and can be killed and run
again. Exit code 1 when something did not work, or when an audit found a broken promise.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from capellini.cli.sparking import (
    SECONDS,
    as_in,
    checkpoint_option,
    is_delta,
    refuse,
    say_summary,
    spark_on,
    sparks,
    whole,
)
from capellini.cli.speaking import hint, pairs, say_json, say_table, talks
from capellini.cli.watching import streaming, working
from capellini.model.errors import NotFound

if TYPE_CHECKING:
    from capellini.pipeline.audit.days import Done
    from capellini.pipeline.audit.job import Audit

SHOWN: Final = 20  # rows of a table for people; `--json` and files have all


@click.group()
def pipeline() -> None:
    """Archive, audit, replay and load very many messages, on Spark."""


# ---- load


@pipeline.command()
@talks
@sparks
@click.argument("queue")
@click.option("--from", "source", metavar="PATH", help="Files to put: a folder, a file or a pattern.")
@click.option("--to", "target", metavar="FOLDER", help="Write the queue's messages into files there instead.")
@click.option("--form", help="parquet, json, csv or text; by the files' names unless given.")
@click.option("--body", default="", metavar="COLUMN", help="The column that becomes the body.")
@click.option("--checkpoint", metavar="FOLDER", help="How far it is; needed with --from.")
@click.option("--once/--go-on", default=True, help="Load what is there (default), or files as they come, too.")
@click.option("--per-s", type=float, help="Messages per second at most.")
def load(
    at: str, as_json: bool, master: str, memory_mb: int | None, settings: tuple[str, ...], queue: str,
    source: str | None, target: str | None, form: str | None, body: str, checkpoint: str | None, once: bool,
    per_s: float | None,
) -> None:  # fmt: skip
    """Put files into QUEUE, each once; or write QUEUE into files."""
    if (source is None) == (target is None):
        raise click.UsageError("say --from PATH or --to FOLDER")
    if target is not None:
        refuse("--to", "body", "checkpoint", "per_s")
        if not once:
            raise click.UsageError("--to writes what is there now: no --go-on")
    if source is not None and checkpoint is None:
        raise click.UsageError("say --checkpoint FOLDER: with it a load that was killed goes on, nothing twice")
    with spark_on(master, memory_mb, settings) as spark:
        from capellini.pipeline.jobs import load as job

        if target is not None:
            with working(spark, f"writing {target}"):
                count = job.unload(spark, job.Unload(at, queue, whole(target), form or "parquet"))
            if as_json:
                say_json({"messages": count})
            else:
                click.echo(f"wrote {count:,} messages to {target}")
            return
        assert source is not None and checkpoint is not None
        wanted = job.Load(whole(source), at, queue, whole(checkpoint), form or "", body, once, per_s)
        with streaming(f"loading {source}") as say:
            summary = job.load(spark, wanted, say)
        say_summary(summary, as_json, "loaded", once)


# ---- archive


@pipeline.command()
@talks
@sparks
@click.argument("queue")
@click.argument("path")
@click.option("--checkpoint", metavar="FOLDER", help="How far it is; needed unless it is a snapshot.")
@click.option(
    "--form", type=click.Choice(["parquet", "delta"]), default="parquet", show_default=True, help="Of the tables."
)
@click.option("--once/--go-on", default=True, help="Archive what is there (default), or go on with what comes.")
@click.option("--snapshot", is_flag=True, help="Of a work or timed queue: what is in it now.")
@click.option(
    "--missing",
    type=click.Choice(["fail", "oldest"]),
    default="fail",
    show_default=True,
    help="What to do when retention has dropped what was not archived yet.",
)
@click.option("--max-rows", type=int, help="Messages of one batch at most.")
@click.option("--reads-per-s", type=float, help="Of each task, so that a live cluster does not feel it.")
@click.option(
    "--keep-days", type=click.IntRange(min=0), help="Afterwards, days older than that are dropped from the archive."
)
@click.option("--compact", is_flag=True, help="Afterwards, small files are made large ones.")
def archive(
    at: str, as_json: bool, master: str, memory_mb: int | None, settings: tuple[str, ...], queue: str,
    path: str, checkpoint: str | None, form: str, once: bool, snapshot: bool, missing: str, max_rows: int | None,
    reads_per_s: float | None, keep_days: int | None, compact: bool,
) -> None:  # fmt: skip
    """Write log queue QUEUE into a table at PATH, by queue and day, each message exactly once."""
    if snapshot and (compact or keep_days is not None or not once):
        raise click.UsageError("--snapshot is written once, beside others: no --keep-days, --compact or --go-on")
    if snapshot:
        refuse("--snapshot", "missing", "max_rows", "checkpoint")
    if not snapshot and checkpoint is None:
        raise click.UsageError("say --checkpoint FOLDER: with it an archive that was killed goes on, nothing twice")
    with spark_on(master, memory_mb, settings, delta=form == "delta") as spark:
        from capellini.pipeline.jobs import archive as job

        if compact or keep_days is not None:
            job.check_kept(path)
        state = whole(checkpoint) if checkpoint else ""
        wanted = job.Archive(at, queue, whole(path), state, form, once, missing, reads_per_s=reads_per_s)
        if max_rows is not None:
            wanted = msgspec.structs.replace(wanted, max_rows=max_rows)
        if snapshot:
            count = job.snapshot(spark, wanted)
            click.echo(f'{{"messages":{count}}}' if as_json else f"archived {count:,} messages of {queue} as it is now")
            return
        with streaming(f"archiving {queue}") as say:
            summary = job.archive(spark, wanted, say)
        say_summary(summary, as_json, "archived", once)
        if keep_days is not None:
            before = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=keep_days)
            for day in job.drop_days(spark, wanted.path, before):
                hint(f"dropped {day}")
        if compact:
            job.compact(spark, wanted.path)


# ---- replay


@pipeline.command()
@talks
@sparks
@checkpoint_option
@click.argument("queue")
@click.option("--from", "path", default="", metavar="ARCHIVE", help="The archive whose messages are put.")
@click.option("--from-queue", default="", metavar="QUEUE", help="Or the log queue that still keeps them.")
@click.option("--from-at", default="", metavar="ADDRESS", help="Where that queue is, if it is elsewhere.")
@click.option("--since", default="", help="Only messages put then or later.")
@click.option("--until", default="", help="Only messages put before.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Only with it; again for more.")
@click.option("--where", default="", metavar="SQL", help="Only those: over queue, extent, number, put_at, body, …")
@click.option("--per-s", type=float, help="Messages per second at most.")
@click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
def replay(
    at: str, as_json: bool, master: str, memory_mb: int | None, settings: tuple[str, ...], checkpoint: str,
    queue: str, path: str, from_queue: str, from_at: str, since: str, until: str, attributes: tuple[str, ...],
    where: str, per_s: float | None, dry_run: bool,
) -> None:  # fmt: skip
    """Put archived messages, or those that a log queue still keeps, into QUEUE once more."""
    with spark_on(master, memory_mb, settings, delta=is_delta(path)) as spark:
        from capellini.pipeline.jobs import replay as job

        wanted = job.Replay(
            at, queue, whole(checkpoint), whole(path) if path else "", from_at, from_queue, since, until,
            pairs(attributes, "an attribute"), where, per_s,
        )  # fmt: skip
        if dry_run:
            rows = [row.asDict() for row in job.counted(spark, wanted).collect()]
            if as_json:
                say_json(rows)
            else:
                say_table(["queue", "day", "messages", "bytes"], [list(row.values()) for row in rows])
                click.echo(f"{sum(row['messages'] for row in rows):,} messages would be put into {queue}")
            return
        with streaming(f"replaying into {queue}") as say:
            summary = job.replay(spark, wanted, say)
        say_summary(summary, as_json, "read")


# ---- audit


@pipeline.command()
@sparks
@click.argument("journal")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
@click.option("--form", help="json, parquet or delta; by what is there unless given.")
@click.option(
    "--drained",
    "drained",
    multiple=True,
    metavar="QUEUE",
    help="This queue is known to be empty: what was not delivered is lost. Again for more.",
)
@click.option("--all-drained", is_flag=True, help="All queues are known to be empty.")
@click.option("--skew-s", type=SECONDS, default=1.0, show_default=True, help="How far clocks of nodes may differ.")
@click.option("--late-s", type=SECONDS, default=2.0, show_default=True, help="After its due this is late.")
@click.option("--stuck-s", type=SECONDS, default=86_400.0, show_default=True, help="Silent for longer is stuck.")
@click.option("--out", metavar="FOLDER", help="All findings as Parquet, with the ids.")
@click.option("--state", metavar="FOLDER", help="Day by day: only days that were not audited yet, going on from here.")
@click.option(
    "--last",
    default="",
    metavar="DAY",
    callback=as_in("%Y-%m-%d"),
    help="With --state: it is complete, though no later one is there.",
)
def audit(
    master: str, memory_mb: int | None, settings: tuple[str, ...], journal: str, as_json: bool, form: str | None,
    drained: tuple[str, ...], all_drained: bool, skew_s: float, late_s: float, stuck_s: float, out: str | None,
    state: str | None, last: str,
) -> None:  # fmt: skip
    """Look at every message's life in JOURNAL: lost, delivered twice, early, late, stuck, dead.

    JOURNAL is an archive of the journal, a file of events, or the address of a store or node, whose journal is read
    as it is now. Exit code 1 when a promise was broken."""
    with spark_on(master, memory_mb, settings, delta=form == "delta" or is_delta(journal)) as spark:
        from capellini.pipeline.audit import days, job
        from capellini.pipeline.journal.columns import is_address, read_journal

        options = job.Options(None if all_drained else frozenset(drained), skew_s, late_s, stuck_s)
        place = journal if is_address(journal) else whole(journal)
        with working(spark, "auditing") as say:
            rows = read_journal(spark, place, form, days=state is not None)
            if state is None:
                summary, findings = job.audit(rows, options, say)
                if not summary.events and not is_address(journal):  # nothing is found in what is no journal, either
                    raise NotFound(f"there is no event in {journal}")
                said = [_audit_said(summary)]
            else:
                for _ in days.audit_days(spark, rows, whole(state), options, say, last):
                    pass
                done = days.untold(whole(state))  # and those that a run before this one was killed with
                said = [{"day": each.day, **_audit_said(each)} for each in done]
                findings = days.findings_of(spark, whole(state)).where(job.among("day", [each.day for each in done]))
            if out and said:  # no new day leaves what is there
                findings.write.mode("overwrite").parquet(whole(out))
            shown = [row.asDict() for row in findings.orderBy("fault", "queue", "id").limit(SHOWN).collect()]
        if as_json:
            say_json({**(said[0] if state is None else {"days": said}), "findings": shown})
        else:
            _say_audit(said, shown)
        if state is not None and said:
            sys.stdout.flush()
            days.tell(whole(state), said[-1]["day"])
        broken = sum(each["broken"] for each in said)
    if broken:
        sys.exit(1)


def _audit_said(of: Audit | Done) -> dict[str, Any]:
    return {
        "events": of.events, "lives": of.lives, "plain": of.plain, "found": of.counts, "broken": of.broken,
        "missing": of.missing,
    }  # fmt: skip


def _say_audit(said: list[dict[str, Any]], shown: list[dict[str, Any]]) -> None:
    if not said:
        click.echo("no day is complete that was not audited yet")
        return
    found: dict[str, int] = {}
    for each in said:
        of = f"{each['day']}: " if "day" in each else ""
        click.echo(f"{of}{each['events']:,} events, {each['lives']:,} lives, {each['plain']:,} of them plain")
        if each.get("missing"):
            click.echo(f"{each['missing']:,} events are known to be missing: what they could explain is called unknown")
        found = {name: found.get(name, 0) + each["found"].get(name, 0) for name in {*found, *each["found"]}}
    if not found:
        click.echo("nothing was found")
        return
    say_table(["fault", "lives"], sorted(found.items()))
    columns = ["fault", "queue", "generation", "id", "says"]
    say_table(columns, [[row[name] for name in columns] for row in shown])
    if sum(found.values()) > len(shown):
        hint(f"the first {len(shown)}: all of them with --out FOLDER")


# ---- report


@pipeline.command()
@sparks
@click.argument("journal")
@click.argument("page", metavar="PAGE.html")
@click.option("--form", help="json, parquet or delta; by what is there unless given.")
@click.option("--archive", "kept", default="", metavar="ARCHIVE", help="For the most frequent attributes, too.")
@click.option("--title", default="Queues by the hour", show_default=True, help="Of the page.")
def report(
    master: str, memory_mb: int | None, settings: tuple[str, ...], journal: str, page: str, form: str | None,
    kept: str, title: str,
) -> None:  # fmt: skip
    """Write a page about JOURNAL: by queue and hour rates, depth, quantiles of waits, poison messages.

    JOURNAL is what an audit takes, too: an archive of the journal, a file of events, or an address."""
    if not Path(page).absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder {Path(page).parent} for the page")
    with spark_on(master, memory_mb, settings, delta=form == "delta" or is_delta(kept) or is_delta(journal)) as spark:
        from capellini.pipeline.jobs.archive import read_archive
        from capellini.pipeline.journal.columns import is_address, read_journal
        from capellini.pipeline.report import page as pages
        from capellini.pipeline.report import tables

        place = journal if is_address(journal) else whole(journal)
        with working(spark, "reading the journal"):
            archived = read_archive(spark, whole(kept)) if kept else None
            found = tables.report(read_journal(spark, place, form), archived)
        Path(page).write_text(pages.page(found, title), encoding="utf-8")
        queues = len({row["queue"] for row in found.hours})
        click.echo(f"wrote {page}: {queues} queues, {len(found.hours)} hours of them")


# ---- dead letters


@pipeline.command("dead-letters")
@talks
@sparks
@click.argument("queue")
@click.option("--by", default="origin,shape,attributes", show_default=True, help="What a group has in common.")
@click.option("--ignore", multiple=True, metavar="ATTRIBUTE", help="An attribute that tells nothing; again for more.")
@click.option(
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="So many groups, the biggest first."
)
@click.option("--where", default="", metavar="SQL", help="Only those: over origin, shape, attributes, text, put_at, …")
@click.option("--redrive", is_flag=True, help="Move those letters back to where they came from, each once.")
def dead_letters(
    at: str, as_json: bool, master: str, memory_mb: int | None, settings: tuple[str, ...], queue: str, by: str,
    ignore: tuple[str, ...], top: int, where: str, redrive: bool,
) -> None:  # fmt: skip
    """Show the dead letters of QUEUE, or QUEUE@GROUP, in groups, with samples; or move chosen ones back."""
    if redrive:
        refuse("--redrive", "by", "top")
    with spark_on(master, memory_mb, settings) as spark:
        from capellini.pipeline.jobs import letters as job

        wanted = job.Letters(at, queue, tuple(name.strip() for name in by.split(",")), ignore, where, top)
        if redrive:
            with working(spark, "moving letters back"):
                moved = job.redrive(spark, wanted)
            click.echo(f'{{"moved":{moved}}}' if as_json else f"moved {moved:,}")
            return
        with working(spark, "reading letters"):
            rows = [row.asDict(recursive=True) for row in job.groups(spark, wanted).collect()]
        if as_json:
            for row in rows:
                say_json(row)
            return
        columns = ["letters", *wanted.by, "first_at", "last_at", "deliveries"]
        say_table([*columns, "sample"], [[*(row[name] for name in columns), _sample(row)] for row in rows])
        if not rows:
            hint(f"{queue} has no dead letters")


def _sample(row: dict[str, Any]) -> str:
    return str(row["samples"][0]["body"]) if row["samples"] else ""


# ---- rollup

COLLECTED: Final = ("coalesce(sum(collected), 0)", "count_if(deferred <> '')", "max(deferred)")


@pipeline.command()
@talks
@sparks
@click.argument("path")
@click.option(
    "--hour",
    default="",
    metavar="2030-01-31T08",
    callback=as_in("%Y-%m-%dT%H"),
    help="Written as this hour; now unless given.",
)
@click.option("--reads-per-s", type=float, help="Of each task, so that a live cluster does not feel it.")
@click.option("--collect", "collects", is_flag=True, help="Afterwards, collect the garbage of all counters.")
def rollup(
    at: str, as_json: bool, master: str, memory_mb: int | None, settings: tuple[str, ...], path: str, hour: str,
    reads_per_s: float | None, collects: bool,
) -> None:  # fmt: skip
    """Write what all counters say into tables at PATH: by hour, and the last of each day."""
    with spark_on(master, memory_mb, settings) as spark:
        from capellini.pipeline.jobs import rollup as job

        with working(spark, "rolling up"):
            count = job.rollup(spark, job.Rollup(at, whole(path), hour, reads_per_s))
        if not as_json:
            click.echo(f"rolled up {count:,} counters")
        shards = deferred = 0
        if collects:
            with working(spark, "collecting"):
                row = job.collect(spark, at).selectExpr(*COLLECTED).first()
            shards, deferred, why = (int(row[0]), int(row[1]), row[2]) if row is not None else (0, 0, "")
            if not as_json:
                click.echo(f"collected {shards:,} shards")
            if deferred:
                hint(f"{deferred:,} of {count:,} counters wait for a later collection: {why}")
        if as_json:
            say_json({"counters": count, "collected": shards, "deferred": deferred})
