"""`capellini schedule`: messages that come again and again."""

from __future__ import annotations

import click

from capellini.cli.completing import queue_argument
from capellini.cli.speaking import hint, moment, pairs, say_json, say_table, shown, talking, talks
from capellini.model.scheduling import ScheduleInfo


@click.group()
def schedule() -> None:
    """Add, list and remove recurring schedules."""


def _json(info: ScheduleInfo) -> object:
    from capellini.api.schedules import json_schedule

    return json_schedule(info)


@schedule.command()
@talks
@click.argument("name")
@queue_argument()
@click.argument("cron")
@click.argument("body")
@click.option("--zone", default="UTC", show_default=True, help="Whose clock CRON is about, as in Europe/Berlin.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Of each message; again for more.")
@click.option("--catch-up", is_flag=True, help="Ticks that were missed are put later, not skipped.")
def add(
    at: str, as_json: bool, name: str, queue: str, cron: str, body: str, zone: str, attributes: tuple[str, ...],
    catch_up: bool,
) -> None:  # fmt: skip
    """Put BODY into QUEUE at each tick of CRON, under the NAME of this schedule; the same again is fine.

    CRON is MINUTE HOUR DAY MONTH WEEKDAY, in quotes, as in '0 8 * * MON-FRI'.
    """
    raw = body.encode("utf-8", "surrogateescape")
    with talking(at) as client:
        made = client.schedule(
            name, queue, cron, raw, zone=zone, attributes=pairs(attributes, "an attribute"),
            missed="catch_up" if catch_up else "skip",
        )  # fmt: skip
    if as_json:
        say_json(_json(made))
    else:
        click.echo(f"next at {', '.join(moment(each) for each in made.next_at)} UTC")


@schedule.command(name="list")
@talks
@click.argument("prefix", default="")
def list_all(at: str, as_json: bool, prefix: str) -> None:
    """List schedules, all or those whose names begin with PREFIX."""
    with talking(at) as client:
        found = client.schedules(prefix)
    if as_json:
        say_json([_json(each) for each in found])
        return
    if not found:
        hint("no schedules; make one with `capellini schedule add NAME QUEUE CRON BODY`")
        return
    rows = [
        (each.name, each.queue, each.cron, each.zone, moment(each.next_at[0]) if each.next_at else "never",
         each.missed, each.skipped, shown(each.body), each.problem)
        for each in found
    ]  # fmt: skip
    say_table(("name", "queue", "cron", "zone", "next (UTC)", "missed", "skipped", "body", "problem"), rows)


@schedule.command()
@talks
@click.argument("names", nargs=-1, required=True)
def remove(at: str, as_json: bool, names: tuple[str, ...]) -> None:
    """Remove schedules: no tick comes after this, but for those that were due before."""
    with talking(at, unknown="Look with `capellini schedule list` before you repeat it.") as client:
        for name in names:
            client.unschedule(name)
            if as_json:
                say_json({"removed": name})
            else:
                click.echo(f"removed {name}")
