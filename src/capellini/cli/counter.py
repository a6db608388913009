"""`capellini counter`: order-free counters."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import click
import msgspec

from capellini.cli.speaking import progressing, say_json, talking, talks
from capellini.client.counting import WaitingCounters
from capellini.model.counters import QUEUES, SUM, Collected, Reading
from capellini.model.errors import Invalid, NotFound
from capellini.model.service import Problem

NEGATIVE: Final = re.compile(r"-\d[\d.eE+-]*")
UNKNOWN: Final = "Look with `capellini counter read NAME` before you repeat it: in a sum what comes twice counts twice."


@contextlib.contextmanager
def _counters(at: str, makes: bool = False, unknown: str = "") -> Iterator[WaitingCounters]:
    with talking(at, makes, unknown) as client:
        yield client.counters


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself: 5, 1.5, {"add": "x"}, ann."""
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError):  # what is no UTF-8 is refused like any other bad text
        return text


class Numbers(click.Command):
    """-5 is a number, and no option; what is neither is a mistyped option, as ever."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        for each in itertools.takewhile(lambda each: each != "--", args):
            name = each.partition("=")[0]
            if name.startswith("-") and name not in known and not NEGATIVE.fullmatch(each):
                raise click.NoSuchOption(name, ctx=ctx)
        ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args)


@click.group()
def counter() -> None:
    """Count things from anywhere: sums, sets, distinct elements, quantiles."""


@counter.command(cls=Numbers)
@talks
@click.argument("name")
@click.argument("values", nargs=-1)
@click.option("--kind", default=SUM, show_default=True, help="Of the counter; its first update decides.")
def add(at: str, as_json: bool, name: str, values: tuple[str, ...], kind: str) -> None:
    """Update counter NAME with VALUES (1 if none is given). Durable when done.

    A value is JSON, or a text as it stands. Texts that begin with a minus come after `--`; numbers need not.
    """
    updates = [_value(each) for each in values] or [1]
    with _counters(at, makes=True, unknown=UNKNOWN) as counters:
        counters.update(name, updates, kind)
    if as_json:
        say_json({"counted": len(updates)})


@counter.command()
@talks
@click.argument("names", nargs=-1, required=True)
def read(at: str, as_json: bool, names: tuple[str, ...]) -> None:
    """Show the values of counters NAMES."""
    with _counters(at) as counters:
        results = counters.read_many(names)
        if as_json:
            say_json([_json(each) for each in results])
        for name, each in zip(names, results, strict=True):
            if isinstance(each, Problem):
                if len(names) == 1:
                    raise each.raised()
                click.echo(f"{name}: {each.says}", err=True)
            elif not as_json:
                shown = msgspec.json.encode(each.value).decode()
                click.echo(shown if len(names) == 1 else f"{name}\t{shown}")
    if any(isinstance(each, Problem) for each in results):
        raise click.exceptions.Exit(1)


def _json(each: Reading | Problem) -> Any:
    return msgspec.to_builtins(each)


@counter.command(name="list")
@talks
@click.option("--prefix", default="", help="Only names that begin so.")
@click.option("--queues", is_flag=True, help="Those that keep the statistics of queues, instead of the others.")
@click.option("--after", default="", metavar="NAME", help="Go on after this one.")
@click.option("-n", "--count", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="At most.")
def list_all(at: str, as_json: bool, prefix: str, queues: bool, after: str, count: int) -> None:
    """List counters, with their kinds."""
    if queues and not prefix.startswith(QUEUES):
        prefix = QUEUES + prefix
    with _counters(at) as counters:
        found = counters.listed(prefix, after, count)
    if as_json:
        say_json([msgspec.to_builtins(each) for each in found])
        return
    for each in found:
        click.echo(f"{each.name}\t{each.kind}")


@counter.command()
@talks
@click.argument("names", nargs=-1, required=True)
def gc(at: str, as_json: bool, names: tuple[str, ...]) -> None:
    """Merge expired shards of counters NAMES into their tallies. Happens by itself, too."""
    done: list[Collected | Problem] = []
    with _counters(at) as counters, progressing("merging shards", len(names)) as advance:
        for name in names:
            try:
                done.append(counters.collect(name))
            except (Invalid, NotFound) as error:  # of this one: the others are collected
                if len(names) == 1:
                    raise
                done.append(Problem.of(error))
            advance(1)
    if as_json:
        say_json([msgspec.to_builtins(each) for each in done])
    for name, each in zip(names, done, strict=True):
        if isinstance(each, Problem):
            click.echo(f"{name}: {each.says}", err=True)
        elif not as_json:
            click.echo(f"{name}\t{each.shards} shards{f', deferred: {each.deferred}' if each.deferred else ''}")
    if any(isinstance(each, Problem) for each in done):
        raise click.exceptions.Exit(1)
