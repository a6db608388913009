"""`capellini peek`: look at messages without taking them."""

from __future__ import annotations

import click

from capellini.cli.completing import place_argument
from capellini.cli.speaking import say_peeked, talking, talks
from capellini.model.message import MAX_BATCH


@click.command()
@talks
@place_argument()
@click.option("-n", "--count", type=click.IntRange(1, MAX_BATCH), default=10, show_default=True, help="At most.")
@click.option("--after", default="", metavar="ID", help="Go on after this id.")
def peek(at: str, as_json: bool, queue: str, count: int, after: str) -> None:
    """Show the next messages of QUEUE, as they are."""
    with talking(at) as client:
        found = client.peek(queue, count, after)
    say_peeked(found, as_json, count, f"{queue} is empty")
