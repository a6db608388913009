"""`capellini bench NAME`: measure, and hold the figures against their bars."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

import click
from rich.console import Console

from capellini.bench import figures
from capellini.bench.figures import Figure

Suite = Callable[[bool, str | None], Coroutine[Any, Any, list[Figure]]]

# Named by module, imported when asked for: a suite brings along drivers that other verbs do not need.
SUITES: Final[dict[str, str]] = {
    "store": "capellini.bench.store",
    "work": "capellini.bench.work",
    "timed": "capellini.bench.timed",
    "log": "capellini.bench.log",
    "counters": "capellini.bench.counters",
    "pipeline": "capellini.bench.pipeline",
}


def suite(name: str) -> Suite:
    found: Suite = importlib.import_module(SUITES[name]).run
    return found


@click.command()
@click.argument("name", type=click.Choice(sorted(SUITES)))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per figure.")
@click.option("--quick", is_flag=True, help="A smaller version of the same work, in under two minutes.")
@click.option("--only", metavar="PREFIX", help="Only figures whose name begins so.")
@click.option("--strict", is_flag=True, help="Exit with 1 unless every bar holds.")
def bench(name: str, as_json: bool, quick: bool, only: str | None, strict: bool) -> None:
    """Measure a part of Capellini on this machine.

    Starts what it needs itself (a temporary folder, a local cluster), runs, and stops it.
    """
    if not figures.names(name, only):
        known = ", ".join(figures.names(name))
        raise click.BadParameter(f"no figure of {name} begins with {only!r}; there are {known}", param_hint="--only")
    measured = asyncio.run(suite(name)(quick, only))
    if as_json:
        for figure in measured:
            click.echo(figures.as_json_line(figure))
    else:
        Console().print(figures.as_grid(measured))
    if strict and not all(figure.holds for figure in measured):
        sys.exit(1)
