"""`capellini drain`: let a node finish its work and take no new."""

from __future__ import annotations

import time
from typing import Final

import click
import msgspec

from capellini.cli.speaking import DEFAULT_AT, NODE_AT

LOOK_EVERY_S: Final = 0.2


@click.command()
@click.option("--at", envvar="CAPELLINI_AT", default=DEFAULT_AT, show_default=True, metavar="ADDRESS", help=NODE_AT)
@click.option("--end", is_flag=True, help="Take work again.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 3_600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until all that was begun is finished.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def drain(at: str, end: bool, wait_s: float, as_json: bool) -> None:
    """A draining node refuses new work and answers long polls at once; acks, nacks and extends are still taken.

    Exit code 1 when something was still under way after the wait.
    """
    from capellini.node.asking import ask_node

    deadline_s = time.monotonic() + wait_s
    while True:
        _, answer = ask_node(at, "POST", "/v1/drain", "in_flight", msgspec.json.encode({"draining": not end}))
        left = answer["in_flight"] + answer["waiting"]
        if end or not left or time.monotonic() >= deadline_s:
            break
        time.sleep(LOOK_EVERY_S)
    if as_json:
        click.echo(msgspec.json.encode(answer).decode())
    elif end:
        click.echo("takes work again")
    else:
        click.echo("drained" if not left else f"draining, with {left} requests still under way")
    if left and not end:
        raise click.exceptions.Exit(1)
