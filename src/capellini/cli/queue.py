"""`capellini queue`: create, list, show, set, pause, resume, purge, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
import msgspec

from capellini.cli.completing import kind_names, option_names, place_argument, queue_argument, queue_names
from capellini.cli.group import LAG_COLUMNS, lag_row
from capellini.cli.speaking import (
    confirmed,
    hint,
    moment,
    option_values,
    say_json,
    say_table,
    talking,
    talks,
)
from capellini.model.log import AT, GroupInfo, GroupLag, split_name
from capellini.model.service import QueueInfo, Statistics

RANKS: Final = ("0.5", "0.9", "0.99", "1")  # of the quantiles, for people
UNKNOWN: Final = "Look with `capellini queue show NAME` before you repeat it: what was put since would go, too."
SET_HELP: Final = "An option of the queue, as NAME=VALUE; again for more."


@click.group()
def queue() -> None:
    """Make, change and remove queues."""


def say_queue(
    info: QueueInfo,
    as_json: bool,
    statistics: Statistics | None = None,
    groups: Sequence[tuple[GroupInfo, GroupLag]] | None = None,
) -> None:
    if as_json:
        whole = msgspec.to_builtins(info)
        if statistics is not None:
            whole["statistics"] = statistics
        if groups is not None:
            whole["groups"] = [{"group": group, "lag": lag} for group, lag in groups]
        say_json(whole)
        return
    rows: list[tuple[str, object]] = [("name", info.name), ("kind", info.kind), ("created at", moment(info.created_at))]
    paused = [side for side, is_paused in (("puts", info.puts_paused), ("gets", info.gets_paused)) if is_paused]
    rows.append(("paused", " and ".join(paused) or "no"))
    rows += sorted(info.options.items())
    if statistics is not None:
        for name, value in msgspec.structs.asdict(statistics).items():
            if name != "exact":
                about = "" if name in statistics.exact or name.endswith("_per_s") else "about "
                rows.append((name, _shown(value, about)))
    say_table(("what", "is"), rows)
    if groups:
        click.echo()
        say_table(LAG_COLUMNS, [lag_row(group, lag) for group, lag in groups])
    elif groups is not None:
        hint(f"no groups yet: make one with `capellini group create {info.name} GROUP`")


def _shown(value: float | dict[str, float] | None, about: str) -> str:
    if isinstance(value, dict):
        named = ", ".join(f"{float(rank):.0%} within {most:.3g}" for rank, most in value.items() if rank in RANKS)
        return f"{about}{named}" if named else "none"
    return "none" if value is None else f"{about}{value}" if isinstance(value, int) else f"{about}{value:g}"


@queue.command()
@talks
@click.argument("name")
@click.option("--kind", default="work", show_default=True, help="work, timed or log.", shell_complete=kind_names)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help=SET_HELP, shell_complete=option_names)
@click.argument("more", nargs=-1, metavar="[NAME=VALUE]...", shell_complete=option_names)
def create(at: str, as_json: bool, name: str, kind: str, settings: tuple[str, ...], more: tuple[str, ...]) -> None:
    """Create a queue; the same again is fine. Options may also follow the name, as in `queue set`."""
    options = option_values((*settings, *more), kind)
    with talking(at, makes=True) as client:
        say_queue(client.create_queue(name, kind, **options), as_json)


@queue.command(name="list")
@talks
@click.argument("prefix", default="", shell_complete=queue_names)
def list_all(at: str, as_json: bool, prefix: str) -> None:
    """List queues, all or those whose names begin with PREFIX."""
    with talking(at) as client:
        found = client.list_queues(prefix)
    if as_json:
        say_json(found)
    elif not found:
        hint("no queues; make one with `capellini queue create NAME`")
    else:
        say_table(("name", "kind", "created at"), [(each.name, each.kind, moment(each.created_at)) for each in found])


@queue.command()
@talks
@place_argument("name")
def show(at: str, as_json: bool, name: str) -> None:
    """Show a queue: its options, how much is in it, and what happened in it since it was made or purged.

    Of a log queue all groups are told; with @GROUP the counts are of that group alone.
    """
    with talking(at) as client:
        of, group = split_name(name)
        info = client.show_queue(of)
        groups = None
        if info.kind == "log":
            names = [group] if AT in name else [each.name for each in client.groups.list(of)]
            groups = [client.groups.show(of, each) for each in names]
        say_queue(info, as_json, client.statistics(name), groups)


@queue.command(name="set")
@talks
@queue_argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...", shell_complete=option_names)
def change(at: str, as_json: bool, name: str, settings: tuple[str, ...]) -> None:
    """Change options of a queue."""
    with talking(at) as client:
        kind = client.show_queue(name).kind
        say_queue(client.change_queue(name, **option_values(settings, kind)), as_json)


def _sides(puts: bool, gets: bool) -> tuple[bool, bool]:
    """Both, when none was named."""
    return (puts, gets) if puts or gets else (True, True)


@queue.command()
@talks
@queue_argument("name")
@click.option("--puts", is_flag=True, help="Take no puts.")
@click.option("--gets", is_flag=True, help="Give no messages.")
def pause(at: str, as_json: bool, name: str, puts: bool, gets: bool) -> None:
    """Pause a queue: both sides, unless one is named."""
    puts, gets = _sides(puts, gets)
    with talking(at) as client:
        say_queue(client.pause_queue(name, puts=puts, gets=gets), as_json)


@queue.command()
@talks
@queue_argument("name")
@click.option("--puts", is_flag=True, help="Take puts again.")
@click.option("--gets", is_flag=True, help="Give messages again.")
def resume(at: str, as_json: bool, name: str, puts: bool, gets: bool) -> None:
    """End a pause: of both sides, unless one is named."""
    puts, gets = _sides(puts, gets)
    with talking(at) as client:
        say_queue(client.resume_queue(name, puts=puts, gets=gets), as_json)


@queue.command()
@talks
@queue_argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(at: str, as_json: bool, name: str, yes: bool) -> None:
    """Remove all messages of a queue; its options and groups stay."""
    with talking(at, unknown=UNKNOWN) as client:
        client.show_queue(name)  # a name that does not exist needs no question
        confirmed(f"Remove all messages of {name}?", yes)
        say_queue(client.purge_queue(name), as_json)


@queue.command()
@talks
@queue_argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(at: str, as_json: bool, name: str, yes: bool) -> None:
    """Remove a queue and all its messages."""
    with talking(at, unknown=UNKNOWN) as client:
        client.show_queue(name)
        confirmed(f"Remove {name} and all its messages?", yes)
        client.delete_queue(name)
    if as_json:
        say_json({"deleted": name})
    else:
        click.echo(f"deleted {name}")
