"""`capellini timed`: what is scheduled in a timed queue, and who works its shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import click

from capellini.cli.completing import queue_argument
from capellini.cli.speaking import (
    console,
    due_argument,
    hint,
    moment,
    say_done,
    say_json,
    say_table,
    shown,
    table_of,
    talking,
    talks,
)
from capellini.model.message import MAX_BATCH
from capellini.model.timed import MAX_DUE_S, DueMessage, ShardView

WATCH_S: Final = 1.0  # between two looks
COLUMNS: Final = (
    "shard", "state", "holder", "cursor (UTC)", "horizon (UTC)", "lag s", "ready", "waiting", "in flight", "epoch",
    "remarks",
)  # fmt: skip


@click.group()
def timed() -> None:
    """Look at timed queues: what is due, and who works which shard."""


def _row(view: ShardView) -> tuple[object, ...]:
    remarks = [*(["retired"] if view.retired else []), *([view.suspicious] if view.suspicious else [])]
    lag = None if view.lag_s is None else f"{view.lag_s:.1f}"
    return (
        view.shard, view.state, view.holder or "-", moment(view.cursor_at), moment(view.horizon_at), lag, view.ready,
        view.waiting, view.in_flight, view.epoch, ", ".join(remarks),
    )  # fmt: skip


@timed.command()
@talks
@queue_argument()
@click.option("--watch", is_flag=True, help="Look again every second, until Ctrl-C.")
@click.option("--looks", type=click.IntRange(1), help="With --watch: so many, and then no more.")
def shards(at: str, as_json: bool, queue: str, watch: bool, looks: int | None) -> None:
    """Show the shards of QUEUE: holder, cursor, horizon, lag, state."""
    if looks is not None and not watch:
        raise click.UsageError("--looks goes with --watch")
    with talking(at) as client:
        if not watch:
            _say_shards(client.shards(queue), as_json)
        elif as_json:
            _watch(lambda: client.shards(queue), lambda views: _say_shards(views, True), looks)
        else:
            _live(lambda: client.shards(queue), looks)


def _say_shards(views: Sequence[ShardView], as_json: bool) -> None:
    if as_json:
        say_json(list(views))
    else:
        say_table(COLUMNS, [_row(view) for view in views])


def _watch(look: Callable[[], list[ShardView]], say: Callable[[list[ShardView]], None], looks: int | None) -> None:
    seen = 0
    try:
        while True:
            say(look())
            seen += 1
            if looks is not None and seen >= looks:
                return
            time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return  # that is how a watch ends


def _live(look: Callable[[], list[ShardView]], looks: int | None) -> None:
    from rich.live import Live

    with Live(auto_refresh=False, console=console()) as live:
        _watch(look, lambda views: live.update(table_of(COLUMNS, map(_styled, views)), refresh=True), looks)


def _styled(view: ShardView) -> tuple[tuple[object, ...], str]:
    return _row(view), "" if view.state == "started" and not view.suspicious else "yellow"


@timed.command()
@talks
@queue_argument()
@click.argument("shard", type=int)
def stop(at: str, as_json: bool, queue: str, shard: int) -> None:
    """Have a shard of QUEUE hand out nothing, whoever works it."""
    with talking(at) as client:
        _say_shards([client.stop_shard(queue, shard)], as_json)


@timed.command()
@talks
@queue_argument()
@click.argument("shard", type=int)
def start(at: str, as_json: bool, queue: str, shard: int) -> None:
    """Have a shard of QUEUE hand out again."""
    with talking(at) as client:
        _say_shards([client.start_shard(queue, shard)], as_json)


@timed.command()
@talks
@queue_argument()
@click.option("--from", "start", metavar="TIME", help="From this time on; now unless given.")
@click.option("--to", "end", metavar="TIME", help="Before this time; without end unless given.")
@click.option("-n", "--count", type=click.IntRange(1, MAX_BATCH), default=100, show_default=True, help="At most.")
@click.option("--after", default="", metavar="ID", help="Go on after this id; with --from as its due.")
def due(at: str, as_json: bool, queue: str, start: str | None, end: str | None, count: int, after: str) -> None:
    """Show what is due in QUEUE between two times, as in 2030-01-31T08:00:00Z."""
    now_s = time.time()
    first = now_s if start is None else due_argument(start)
    last = now_s + MAX_DUE_S - 1 if end is None else due_argument(end)
    with talking(at) as client:
        found = client.due_between(queue, first, last, count, after)
    _say_due(found, as_json)


def _say_due(found: Sequence[DueMessage], as_json: bool) -> None:
    from capellini.api.timed import json_due

    if as_json:
        for each in found:
            say_json(json_due(each))
    elif not found:
        hint("nothing is due then")
    else:
        rows = [(each.id, moment(each.due_at), each.state, each.deliveries, shown(each.body)) for each in found]
        say_table(("id", "due (UTC)", "state", "deliveries", "body"), rows)


@timed.command()
@talks
@queue_argument()
@click.argument("ids", nargs=-1, required=True)
def cancel(at: str, as_json: bool, queue: str, ids: tuple[str, ...]) -> None:
    """Cancel scheduled messages of QUEUE by their ids."""
    with talking(at) as client:
        results = client.cancel_many(queue, ids)
    say_done(results, ids, as_json, "cancelled")


@timed.command()
@talks
@queue_argument()
@click.argument("id")
@click.argument("due")
def move(at: str, as_json: bool, queue: str, id: str, due: str) -> None:
    """Give a scheduled message of QUEUE another DUE, as in 2030-01-31T08:00:00Z; its id stays."""
    when = due_argument(due)
    with talking(at) as client:
        results = client.move_many(queue, [(id, when)])
    say_done(results, [id], as_json, "moved")
