"""`capellini debug`: a look inside a work queue."""

from __future__ import annotations

import click
import msgspec

from capellini.cli.speaking import moment, pairs, say_json, say_table, talking, talks
from capellini.model.service import PointersView


@click.group()
def debug() -> None:
    """Look inside a queue: buckets, pointers, single messages."""


@debug.command()
@talks
@click.argument("queue")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True)
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
@click.argument("queue")
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
@click.argument("queue")
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
    say_table(("what", "is"), whole.items())
