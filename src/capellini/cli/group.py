"""`capellini group`: consumer groups of log queues: create, list, show, set, seek, delete."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_type_hints

import click
import msgspec

from capellini.cli.completing import group_argument, group_option_names, queue_argument
from capellini.cli.speaking import (
    confirmed,
    due_argument,
    hint,
    moment,
    pairs,
    say_json,
    say_table,
    talking,
    talks,
)
from capellini.model.log import EARLIEST, LATEST, GroupInfo, GroupLag, GroupOptions

FILTER: Final = "filter"
FILTER_HELP: Final = "Only messages whose attribute has one of these values; again for more attributes."
SET_HELP: Final = "An option of the group, as NAME=VALUE; again for more."
WHERE: Final = f"{EARLIEST}, {LATEST}, or a time as in 2030-01-31T08:00:00Z"


@click.group()
def group() -> None:
    """Make, change, move and remove consumer groups of log queues."""


# What people give


def position(text: str) -> str | float:
    """Where a group starts, as it was given."""
    if text in (EARLIEST, LATEST):
        return text
    at = due_argument(text)
    if at > time.time():
        hint("that time is to come: messages put before it are not for this group")
    return at


def filters_of(texts: Sequence[str]) -> dict[str, list[str]]:
    """NAME=VALUE,VALUE arguments."""
    return {name: values.split(",") for name, values in pairs(texts, "a filter").items()}


def group_values(texts: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE arguments for group options: numbers are read as the options are declared; nothing: as the queue's."""
    types = get_type_hints(GroupOptions)
    values: dict[str, Any] = {}
    for name, text in pairs(texts, "an option").items():
        if name == FILTER:
            raise click.UsageError("a filter is given as --filter ATTRIBUTE=VALUE,VALUE")
        if name in ("queue", "group", "name", "start"):
            raise click.UsageError(f"{name} is no option of a group; where it starts is given as --start")
        if name not in types:
            values[name] = text  # the node says which there are
        elif not text:
            values[name] = None
        else:
            whole = types[name] == int | None
            try:
                values[name] = int(text) if whole else float(text)
            except ValueError:
                noun = "a whole number" if whole else "a number"
                raise click.UsageError(f"{name} is {noun}, not {text!r}") from None
    return values


# What they see


def say_group(info: GroupInfo, as_json: bool, lag: GroupLag | None = None) -> None:
    if info.says:
        hint(info.says)
    if as_json:
        say_json(info if lag is None else {"group": info, "lag": lag})
        return
    rows: list[tuple[str, object]] = [
        ("queue", info.queue), ("name", info.name), ("version", info.version), ("starts at", started(info)),
        ("created at", moment(info.created_at)), ("dead letters", info.dead_letters),
    ]  # fmt: skip
    rows += option_rows(info.options)
    if lag is not None:
        about = "" if lag.exact else "about "
        rows += [(name.replace("_", " "), f"{about}{getattr(lag, name)}") for name in ("ready", "in_flight", "delayed")]
        rows.append(("oldest age", aged(lag.oldest_age_s)))
    say_table(("what", "is"), rows)


def option_rows(options: GroupOptions) -> list[tuple[str, object]]:
    whole = msgspec.structs.asdict(options)
    filters: Mapping[str, list[str]] = whole.pop(FILTER)
    rows: list[tuple[str, object]] = [
        (name, "as its queue says" if value is None else f"{value:g}") for name, value in whole.items()
    ]
    shown = "; ".join(f"{name} is {' or '.join(values)}" for name, values in filters.items())
    return [*rows, (FILTER, shown or "none")]


def started(info: GroupInfo) -> str:
    return moment(info.start_at) if info.start_at else EARLIEST


def aged(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds:.1f} s"


LAG_COLUMNS: Final = ("group", "ready", "in flight", "delayed", "oldest age", "starts at", "dead letters")


def lag_row(info: GroupInfo, lag: GroupLag) -> tuple[object, ...]:
    about = "" if lag.exact else "about "
    counts = (f"{about}{lag.ready}", f"{about}{lag.in_flight}", f"{about}{lag.delayed}")
    return (info.name, *counts, aged(lag.oldest_age_s), started(info), info.dead_letters)


# The verbs


@group.command()
@talks
@queue_argument()
@click.argument("group")
@click.option("--start", default=EARLIEST, show_default=True, metavar="WHERE", help=f"{WHERE}.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help=SET_HELP,
              shell_complete=group_option_names)  # fmt: skip
@click.option("--filter", "filters", multiple=True, metavar="NAME=VALUE,VALUE", help=FILTER_HELP)
def create(
    at: str, as_json: bool, queue: str, group: str, start: str, settings: tuple[str, ...], filters: tuple[str, ...]
) -> None:
    """Create GROUP of the log queue QUEUE; the same again is fine."""
    wanted = filters_of(filters)
    options = {**group_values(settings), **({FILTER: wanted} if wanted else {})}
    with talking(at) as client:
        say_group(client.groups.create(queue, group, start=position(start), **options), as_json)


@group.command(name="list")
@talks
@queue_argument()
def list_all(at: str, as_json: bool, queue: str) -> None:
    """List the groups of QUEUE, and how far each is behind."""
    with talking(at) as client:
        found = [client.groups.show(queue, each.name) for each in client.groups.list(queue)]
    if as_json:
        say_json([{"group": info, "lag": lag} for info, lag in found])
    elif not found:
        hint(f"{queue} has no groups; make one with `capellini group create {queue} GROUP`")
    else:
        say_table(LAG_COLUMNS, [lag_row(info, lag) for info, lag in found])


@group.command()
@talks
@queue_argument()
@group_argument()
def show(at: str, as_json: bool, queue: str, group: str) -> None:
    """Show GROUP of QUEUE: its options, and how far it is behind."""
    with talking(at) as client:
        info, lag = client.groups.show(queue, group)
    say_group(info, as_json, lag)


@group.command(name="set")
@talks
@queue_argument()
@group_argument()
@click.argument("settings", nargs=-1, metavar="NAME=VALUE...", shell_complete=group_option_names)
@click.option("--filter", "filters", multiple=True, metavar="NAME=VALUE,VALUE", help=FILTER_HELP)
@click.option("--no-filter", is_flag=True, help="All messages again.")
def change(
    at: str, as_json: bool, queue: str, group: str, settings: tuple[str, ...], filters: tuple[str, ...],
    no_filter: bool,
) -> None:  # fmt: skip
    """Change options of GROUP; an empty VALUE means: as its queue says."""
    if not settings and not filters and not no_filter:
        raise click.UsageError("give NAME=VALUE, --filter or --no-filter")
    if filters and no_filter:
        raise click.UsageError("give either --filter or --no-filter")
    with talking(at) as client:
        options = group_values(settings)
        if filters or no_filter:
            options[FILTER] = filters_of(filters)
        say_group(client.groups.change(queue, group, **options), as_json)


@group.command()
@talks
@queue_argument()
@group_argument()
@click.argument("where")
def seek(at: str, as_json: bool, queue: str, group: str, where: str) -> None:
    """Have GROUP go on from WHERE: earliest, latest, or a time as in 2030-01-31T08:00:00Z.

    What it had before comes again, as far as it is kept; what was delivered can no longer be acked.
    """
    to = position(where)
    with talking(at) as client:
        say_group(client.groups.seek(queue, group, to), as_json)


@group.command()
@talks
@queue_argument()
@group_argument()
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(at: str, as_json: bool, queue: str, group: str, yes: bool) -> None:
    """Remove GROUP: how far it was is forgotten; the messages and its dead letters stay."""
    with talking(at) as client:
        client.groups.show(queue, group)  # a name that does not exist needs no question
        confirmed(f"Remove group {group} of {queue}, and how far it was?", yes)
        client.groups.delete(queue, group)
    if as_json:
        say_json({"deleted": f"{queue}@{group}"})
    else:
        click.echo(f"deleted {queue}@{group}")
