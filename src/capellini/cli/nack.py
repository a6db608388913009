"""`capellini nack`: give messages back, by their receipts."""

from __future__ import annotations

import click

from capellini.cli.completing import place_argument
from capellini.cli.speaking import say_done, talking, talks


@click.command()
@talks
@place_argument()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--delay", "delay_s", type=click.FloatRange(0), metavar="SECONDS",
              help="Offered after so long; else as options say.")  # fmt: skip
def nack(at: str, as_json: bool, queue: str, receipts: tuple[str, ...], delay_s: float | None) -> None:
    """Give messages back: they are offered again."""
    with talking(at) as client:
        results = client.nack_many(queue, receipts, delay_s)
    say_done(results, receipts, as_json, "given back")
