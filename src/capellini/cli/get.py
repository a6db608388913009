"""`capellini get`: take messages, print them, and ack them if told so."""

from __future__ import annotations

import click

from capellini.cli.completing import place_argument
from capellini.cli.speaking import delivery_json, hint, say_body, say_json, talking, talks
from capellini.model.message import MAX_BATCH, MAX_WAIT_S
from capellini.model.service import Problem


@click.command()
@talks
@place_argument()
@click.option("-n", "--count", type=click.IntRange(1, MAX_BATCH), default=1, show_default=True, help="At most so many.")
@click.option("--wait", "wait_s", type=click.FloatRange(0, MAX_WAIT_S), default=0.0, metavar="SECONDS",
              help="Wait so long for the first.")  # fmt: skip
@click.option("--visibility", "visibility_s", type=float, metavar="SECONDS", help="Hidden from others for so long.")
@click.option("--ack", "ack", is_flag=True, help="Ack them once they are printed.")
def get(at: str, as_json: bool, queue: str, count: int, wait_s: float, visibility_s: float | None, ack: bool) -> None:
    """Take messages: bodies on stdout; receipts, to ack them with, beside them on stderr."""
    with talking(at) as client:
        messages = client.get(queue, count, wait_s=wait_s, visibility_s=visibility_s)
        for message in messages:
            if as_json:
                say_json(delivery_json(message))
                continue
            if not ack:
                hint(f"id {message.id}, delivery {message.deliveries}, receipt {message.receipt}")
            say_body(message.raw)
        if not messages and not as_json:
            hint(f"nothing to get from {queue} now; --wait SECONDS waits for messages")
        if ack and messages:
            bad = [result for result in client.ack_many(queue, messages) if isinstance(result, Problem)]
            if bad:
                raise click.ClickException(f"{len(bad)} of {len(messages)} were not acked: {bad[0].says}")
        elif messages and not as_json:
            hint(f"ack with `capellini ack {queue} RECEIPT`")
