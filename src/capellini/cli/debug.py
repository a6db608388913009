"""`capellini debug`: a look inside a work queue, or a log queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from capellini.cli.completing import queue_argument
from capellini.cli.journal import journal
from capellini.cli.speaking import hint, moment, pairs, say_json, say_table, talking, talks
from capellini.model.log import ExtentView
from capellini.model.service import PointersView


@click.group()
def debug() -> None:
    """Look inside a queue: buckets, pointers, single messages; extents of log queues; what the journal tells."""


debug.add_command(journal)


@debug.command()
@talks
@queue_argument()
@click.option("-n", "--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="At most.")
def buckets(at: str, as_json: bool, queue: str, limit: int) -> None:
    """Show the buckets that are not finished."""
    with talking(at) as client:
        found = client.buckets(queue, limit)
    if as_json:
        say_json(found)
        return
    rows = [
        (
            each.bucket, each.first, f"{each.written}/{each.size}", each.listed, moment(each.next_visible_at),
            ", ".join(f"{state} {count}" for state, count in each.counts.items() if count),
        )
        for each in found
    ]  # fmt: skip
    say_table(("bucket", "first id", "written", "listed", "next visible", "messages"), rows)


@debug.command()
@talks
@queue_argument()
@click.option("--set", "settings", multiple=True, metavar="repair=BUCKET", help="Look again at buckets from there on.")
def pointers(at: str, as_json: bool, queue: str, settings: tuple[str, ...]) -> None:
    """Show the pointers, or move the repair pointer back."""
    given = pairs(settings, "a pointer")
    if set(given) - {"repair"}:
        raise click.UsageError("repair is the one pointer that can be set: --set repair=BUCKET")
    if given and not (given["repair"].isdecimal() and len(given["repair"]) <= 15):
        raise click.UsageError(f"repair is the number of a bucket, not {given['repair']!r}")
    with talking(at) as client:
        view = client.move_repair(queue, int(given["repair"])) if given else client.pointers(queue)
    _say_pointers(view, as_json)


def _say_pointers(view: PointersView, as_json: bool) -> None:
    if as_json:
        say_json(view)
        return
    whole = msgspec.structs.asdict(view)
    entries = whole.pop("entries")
    say_table(("pointer", "is"), whole.items())
    if entries:
        click.echo()
        say_table(("bucket", "listed", "next visible"), [(bucket, how, moment(when)) for bucket, how, when in entries])


@debug.command()
@talks
@queue_argument()
@click.argument("id")
def message(at: str, as_json: bool, queue: str, id: str) -> None:
    """Tell where one message is."""
    with talking(at) as client:
        view = client.message(queue, id)
    if as_json:
        say_json(view)
        return
    click.echo(view.says)
    whole = {**msgspec.structs.asdict(view), "put_at": moment(view.put_at), "visible_at": moment(view.visible_at)}
    del whole["says"]
    if not view.moved_to:
        del whole["moved_to"]
    say_table(("what", "is"), whole.items())


@debug.command()
@talks
@queue_argument()
def extents(at: str, as_json: bool, queue: str) -> None:
    """Show the extents of a log queue: who writes them, and how far each group is."""
    with talking(at) as client:
        found = client.extents(queue)
    if as_json:
        say_json(found)
        return
    if not found:
        hint(f"{queue} has no extents: nothing was put yet, or all of it was dropped")
        return
    heads, rows = _extent_rows(found)
    say_table(heads, rows)
    readers = [(each.extent, group, *_reader_row(reader)) for each in found for group, reader in each.readers.items()]
    click.echo()
    if readers:
        say_table(("extent", "group", "read by", "epoch", "finished below", "ready", "in flight", "waiting"), readers)
    else:
        hint(f"no groups: make one with `capellini group create {queue} GROUP`")


def _extent_rows(found: Sequence[ExtentView]) -> tuple[list[str], list[list[object]]]:
    """Columns that say nothing here are left out."""
    heads = ["extent", "state", "written by", "level", "messages", "bytes", "opened", "sealed"]
    rows: list[list[object]] = [
        [each.extent, each.state, each.node, each.level, _known(each.end), _known(each.bytes), moment(each.opened_at),
         moment(each.sealed_at)]
        for each in found
    ]  # fmt: skip
    more = {
        "home": [each.home for each in found],
        "replicas": [" ".join(each.replicas) for each in found],
        "remarks": [each.says for each in found],
    }
    for head, values in more.items():
        if any(values):
            heads.append(head)
            for row, value in zip(rows, values, strict=True):
                row.append(value)
    return heads, rows


def _known(value: int | None) -> object:
    return "-" if value is None else value


def _reader_row(reader: dict[str, Any]) -> tuple[object, ...]:
    if reader["finished"]:
        return ("-", reader["epoch"], "all", 0, 0, 0)
    return (
        reader["owner"] or "nobody", reader["epoch"], reader["next"], reader["ready"], reader["in_flight"],
        reader["waiting"],
    )  # fmt: skip
