"""`capellini simulate NAME`: run seeds in virtual time with everything going wrong, and check the promises."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import msgspec
from rich.console import Console
from rich.table import Table

from capellini.proof import suites
from capellini.proof.suites import Summary


@click.command()
@click.argument("name", type=click.Choice(sorted(suites.SUITES)))
@click.option("--seeds", default=20, show_default=True, type=click.IntRange(1), help="How many seeds.")
@click.option("--from", "first", default=1, show_default=True, type=click.IntRange(0), help="The first of them.")
@click.option("--seed", type=click.IntRange(0), help="Replay this one only, and print its history.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes at a time.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def simulate(name: str, seeds: int, first: int, seed: int | None, jobs: int, as_json: bool) -> None:
    """Run a part of Capellini in a simulated world, many times, each with faults of its own.

    A run is a function of its seed alone. Exits with 1 when a promise was broken.
    """
    with _quiet():
        if seed is not None:
            results = [suites.one(name, seed, keep_history=True)]
            for line in results[0].history:
                click.echo(line, err=as_json)
            summary, bad = suites.summed(name, results, _replay(name))
        else:
            summary, bad = suites.summed(name, suites.many(name, range(first, first + seeds), jobs), _replay(name))
    for result in bad:
        for violation in result.violations:
            click.echo(f"seed {result.seed}: {violation}", err=True)
    if as_json:
        click.echo(msgspec.json.encode(summary).decode())
    else:
        _show(summary)
    if summary.violations:
        sys.exit(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """A thousand simulated nodes have much to say, and those that crash leave things unfinished, as they should."""
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _replay(name: str) -> Callable[[int], str]:
    return lambda seed: f"capellini simulate {name} --seed {seed}"


def _show(summary: Summary) -> None:
    console = Console()
    hours = summary.virtual_s / 3600
    console.print(
        f"{summary.simulate}: {summary.seeds} seeds, {hours:.2f} virtual hours in {summary.wall_s:.1f} s, "
        f"{summary.messages} messages, {summary.violations} violations"
    )
    for title, counts in (("fault", summary.faults), ("guard", summary.guards)):
        grid = Table(title, "times", box=None, pad_edge=False)
        for what, times in counts.items():
            grid.add_row(what, str(times))
        console.print(grid)
    if summary.replay is not None:
        console.print(f"Replay: {summary.replay}")
