"""`capellini ack`: done with messages, by their receipts."""

from __future__ import annotations

import click

from capellini.cli.completing import place_argument
from capellini.cli.speaking import say_done, talking, talks


@click.command()
@talks
@place_argument()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
def ack(at: str, as_json: bool, queue: str, receipts: tuple[str, ...]) -> None:
    """Ack messages: they do not come again."""
    with talking(at) as client:
        results = client.ack_many(queue, receipts)
    say_done(results, receipts, as_json, "acked")
