"""`capellini dead`: what was delivered too often.

Of work and timed queues it lies in the queue that `dead_letters` names, and goes back with `redrive`. Of a log queue
each group has its own: they come to that group again with `merge`, and to no other.
"""

from __future__ import annotations

from typing import Final

import click

from capellini.cli.completing import place_argument
from capellini.cli.speaking import confirmed, progressing, say_json, say_peeked, talking, talks
from capellini.model.log import AT, split_name
from capellini.model.message import MAX_BATCH

UNKNOWN: Final = "See what is left with `capellini dead list QUEUE`, and repeat it: what was moved is not moved again."


@click.group()
def dead() -> None:
    """Look at dead letters, send them again, or remove them."""


@dead.command(name="list")
@talks
@place_argument()
@click.option("-n", "--count", type=click.IntRange(1, MAX_BATCH), default=100, show_default=True, help="At most.")
@click.option("--after", default="", metavar="ID", help="Go on after this id.")
def list_all(at: str, as_json: bool, queue: str, count: int, after: str) -> None:
    """List dead letters that came from QUEUE."""
    with talking(at) as client:
        found = client.dead(queue, count, after)
    say_peeked(found, as_json, count, f"no dead letters of {queue}")


@dead.command()
@talks
@place_argument()
@click.option("-n", "--count", type=click.IntRange(1), help="At most so many; else all.")
def redrive(at: str, as_json: bool, queue: str, count: int | None) -> None:
    """Move dead letters back into QUEUE, each exactly once."""
    with talking(at, unknown=UNKNOWN) as client, progressing(f"moving back into {queue}") as advance:
        moved = client.redrive(queue, count, progress=advance)
    if as_json:
        say_json({"moved": moved})
    else:
        click.echo(f"moved {moved}")


@dead.command()
@talks
@place_argument()
@click.option("-n", "--count", type=click.IntRange(1), help="At most so many; else all.")
def merge(at: str, as_json: bool, queue: str, count: int | None) -> None:
    """Have dead letters of a group of a log queue come to it again, each once, and to no other group."""
    with talking(at, unknown=UNKNOWN) as client, progressing(f"merging into {queue}") as advance:
        of, group = split_name(queue)
        moved = client.groups.merge_dead(of, group, count, progress=advance)
    if as_json:
        say_json({"moved": moved})
    else:
        click.echo(f"moved {moved}")


@dead.command()
@talks
@place_argument()
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(at: str, as_json: bool, queue: str, yes: bool) -> None:
    """Remove all dead letters of a group of a log queue."""
    with talking(at) as client:
        of, group = split_name(queue)
        client.groups.show(of, group)  # a name that does not exist needs no question
        confirmed(f"Remove all dead letters of group {group} of {of}?", yes)
        client.groups.purge_dead(of, group)
    if as_json:
        say_json({"purged": f"{of}{AT}{group}"})
    else:
        click.echo(f"purged the dead letters of {of}{AT}{group}")
