"""`capellini dead`: what was delivered too often."""

from __future__ import annotations

import click

from capellini.cli.speaking import progressing, say_json, say_peeked, talking, talks
from capellini.model.message import MAX_BATCH


@click.group()
def dead() -> None:
    """Look at dead letters, and send them again."""


@dead.command(name="list")
@talks
@click.argument("queue")
@click.option("-n", "--count", type=click.IntRange(1, MAX_BATCH), default=100, show_default=True)
@click.option("--after", default="", metavar="ID", help="Go on after this id.")
def list_all(at: str, as_json: bool, queue: str, count: int, after: str) -> None:
    """List dead letters that came from QUEUE."""
    with talking(at) as client:
        found = client.dead(queue, count, after)
    say_peeked(found, as_json, f"no dead letters of {queue}")


@dead.command()
@talks
@click.argument("queue")
@click.option("-n", "--count", type=click.IntRange(1), help="At most so many; else all.")
def redrive(at: str, as_json: bool, queue: str, count: int | None) -> None:
    """Move dead letters back into QUEUE, each exactly once."""
    with talking(at) as client, progressing(f"moving back into {queue}") as advance:
        moved = client.redrive(queue, count, progress=advance)
    if as_json:
        say_json({"moved": moved})
    else:
        click.echo(f"moved {moved}")
