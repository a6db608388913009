"""`capellini bench NAME`: measure, and hold the figures against their bars."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from capellini.bench import figures
from capellini.bench.figures import Figure
from capellini.cli.installed import importing

Suite = Callable[..., AsyncIterator[Figure]]  # of quick and only; the one with a page, of its folder too

# Named by module, imported when asked for: a suite brings along drivers that other verbs do not need.
SUITES: Final[dict[str, str]] = {
    "store": "capellini.bench.store",
    "work": "capellini.bench.work",
    "timed": "capellini.bench.timed",
    "log": "capellini.bench.log",
    "counters": "capellini.bench.counters",
    "pipeline": "capellini.bench.pipeline",
    "peers": "capellini.bench.beside",
}


def suite(name: str) -> Suite:
    with importing(f"bench {name}"):
        found: Suite = importlib.import_module(SUITES[name]).run
    return found


@click.command()
@click.argument("name", type=click.Choice(sorted(SUITES)))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per figure.")
@click.option("--quick", is_flag=True, help="A smaller version of the same work, in under two minutes.")
@click.option("--only", metavar="PREFIX", help="Only figures whose name begins so.")
@click.option("--strict", is_flag=True, help="Exit with 1 unless every bar holds.")
@click.option(
    "--page", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="peers: write tables, plots and raw results into benchmarks.md of this folder and beside it.",
)  # fmt: skip
def bench(name: str, as_json: bool, quick: bool, only: str | None, strict: bool, page: Path | None) -> None:
    """Measure a part of Capellini on this machine.

    Starts what it needs itself (a temporary folder, a local cluster), runs, and stops it.
    """
    if not figures.names(name, only):
        known = ", ".join(figures.names(name))
        raise click.BadParameter(f"no figure of {name} begins with {only!r}; there are {known}", param_hint="--only")
    if page is not None and name != "peers":
        raise click.BadParameter(f"{name} has no page of its own; peers has", param_hint="--page")
    if page is not None and not (page / "benchmarks.md").is_file():
        raise click.BadParameter(f"there is no benchmarks.md in {page}", param_hint="--page")
    more = {} if page is None else {"page": page}
    measured = asyncio.run(_told(suite(name)(quick, only, **more), as_json))
    if not as_json:
        Console().print(figures.as_page(sorted(measured, key=lambda figure: list(figures.BARS).index(figure.figure))))
    if strict and not all(figure.holds for figure in measured):
        sys.exit(1)


async def _told(found: AsyncIterator[Figure], as_json: bool) -> list[Figure]:
    """In JSON each is told as soon as it is there."""
    measured = []
    async for figure in found:
        measured.append(figure)
        if as_json:
            click.echo(figures.as_json_line(figure))
    return measured
