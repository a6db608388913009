"""`capellini simulate NAME`: run seeds in virtual time with everything going wrong, and check the promises."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Event
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table

from capellini.cli.speaking import progressing
from capellini.proof import suites
from capellini.proof.suites import Result, Summary, Tally

INTERRUPTED: Final = 130  # as a shell says of what Ctrl-C ended


@click.command()
@click.argument("name", type=click.Choice(sorted(suites.SUITES)))
@click.option("--seeds", default=20, show_default=True, type=click.IntRange(1), help="How many seeds.")
@click.option("--from", "first", default=1, show_default=True, type=click.IntRange(0), help="The first of them.")
@click.option("--seed", type=click.IntRange(0), help="Replay this one only, and print its history.")
@click.option("--jobs", type=click.IntRange(1, 64), help="Processes at a time; one per core unless given.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def simulate(name: str, seeds: int, first: int, seed: int | None, jobs: int | None, as_json: bool) -> None:
    """Run a part of Capellini in a simulated world, many times, each with faults of its own.

    A run is a function of its seed alone. Violations are told as they are found; Ctrl-C ends it with what the seeds so
    far showed. Exits with 1 when a promise was broken.
    """
    with _quiet():
        if seed is not None:
            summary, interrupted = _replayed(name, seed, as_json), False
        else:
            summary, interrupted = _run(name, range(first, first + seeds), jobs or len(os.sched_getaffinity(0)))
    if as_json:
        click.echo(msgspec.json.encode(summary).decode())
    else:
        _show(summary)
    if summary.violations:
        sys.exit(1)
    if interrupted:
        sys.exit(INTERRUPTED)


def _replayed(name: str, seed: int, as_json: bool) -> Summary:
    tally = Tally(name, _replay(name))
    result = suites.one(name, seed, keep_history=True)
    for line in result.history:
        click.echo(line, err=as_json)
    tally.add(result)
    _tell(result)
    return tally.summary()


def _run(name: str, seeds: range, jobs: int) -> tuple[Summary, bool]:
    """What they showed, and whether somebody ended it before the last."""
    tally = Tally(name, _replay(name))
    with (
        _interrupt() as interrupted,
        closing(suites.many(name, seeds, min(jobs, len(seeds)))) as results,
        progressing(f"simulating {name}", len(seeds)) as advance,
    ):
        for result in results:
            tally.add(result)
            _tell(result)
            advance(1)
            if interrupted.is_set():
                break
    return tally.summary(), interrupted.is_set()


@contextmanager
def _interrupt() -> Iterator[Event]:
    """Ctrl-C is noted, and heeded between two seeds; the next one has its usual effect."""
    heard = Event()
    before = signal.getsignal(signal.SIGINT)

    def note(*_: object) -> None:
        heard.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(result: Result) -> None:
    for violation in result.violations:
        click.echo(f"seed {result.seed}: {violation}", err=True)


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
