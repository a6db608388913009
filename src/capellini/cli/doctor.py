"""`capellini doctor`: find out what is wrong with a store or a node."""

from __future__ import annotations

import asyncio
import os
from typing import Final

import click

from capellini.cli.speaking import DEFAULT_AT

_SIGN: Final = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "bad": ("bad ", "red")}


@click.command()
@click.argument("address", envvar="CAPELLINI_AT", default=DEFAULT_AT)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def doctor(address: str, as_json: bool) -> None:
    """Examine rocks:FOLDER, cassandra://HOST/KEYSPACE or http://HOST:PORT. Exit code 1 when something is bad."""
    from capellini.node import checks
    from capellini.node.doctor import examine

    findings = asyncio.run(examine(address))
    if as_json:
        click.echo(checks.as_json(findings))
    else:
        plain = bool(os.environ.get("NO_COLOR"))  # click does not know it
        for each in findings:
            sign, colour = _SIGN[each.state]
            click.echo(f"{click.style(sign, fg=None if plain else colour, reset=not plain)} {each.name}: {each.says}")
            if each.do and each.state != "ok":
                click.echo(f"       {each.do}")
    raise click.exceptions.Exit(checks.exit_code(findings))
