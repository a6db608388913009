"""`capellini health`: is a node alive and ready."""

from __future__ import annotations

import click
import msgspec

from capellini.cli.speaking import DEFAULT_AT, NODE_AT


@click.command()
@click.option("--at", envvar="CAPELLINI_AT", default=DEFAULT_AT, show_default=True, metavar="ADDRESS", help=NODE_AT)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def health(at: str, as_json: bool) -> None:
    """Say whether a node is alive and ready; exit code 1 when it is not ready."""
    from capellini.node.asking import ask_node

    status, answer = ask_node(at, "GET", "/ready", "ready")
    ready = status == 200
    if as_json:
        click.echo(msgspec.json.encode(answer).decode())
    else:
        reasons = "; ".join(answer.get("reasons", []))
        well = f"ready, but {reasons}" if reasons else "ready"
        click.echo(well if ready else f"alive, but not ready: {reasons or 'it does not say why'}")
    if not ready:
        raise click.exceptions.Exit(1)
