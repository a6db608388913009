"""`capellini debug journal`: what happened to messages, as the nodes told it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click
import msgspec

from capellini.cli.completing import queue_names
from capellini.cli.speaking import hint, moment, talking, talks
from capellini.model.errors import Invalid, NotFound
from capellini.model.message import MAX_BATCH
from capellini.model.options import JOURNAL
from capellini.node.following import told
from capellini.queues.events import Account, Happened, Who, queue_in
from capellini.queues.journal import Ledger, events_in

if TYPE_CHECKING:
    from capellini.client.sync import Client

NOT_THERE: Final = "there is no journal: no node that keeps one has told it anything yet"


@click.command()
@talks
@click.argument("queue", default="", shell_complete=queue_names, metavar="[QUEUE]")
@click.option("--id", "id", default="", metavar="ID", help="Only what happened to this message.")
@click.option("--last", type=click.IntRange(1, 1_000_000), help="Only the last so many.")
def journal(at: str, as_json: bool, queue: str, id: str, last: int | None) -> None:
    """Show what happened to the messages of QUEUE, or of all, as the nodes' journal has it.

    In the order in which it is stored: each node's events by their numbers, those of several nodes by the second.
    """
    ledger = Ledger()
    with talking(at) as client:
        found: Iterator[Happened] | deque[Happened] = _wanted(_events(client, ledger), queue, id)
        for event in deque(found, maxlen=last) if last else found:
            click.echo(msgspec.json.encode(event).decode() if as_json else _line(event))
    for who, account in ledger.accounts().items():
        for says in _gaps(who, account):
            hint(says)


def _events(client: Client[bytes], ledger: Ledger) -> Iterator[Happened]:
    after = ""
    while True:
        try:
            page = client.peek(JOURNAL, MAX_BATCH, after)
        except NotFound:
            raise click.ClickException(NOT_THERE) from None
        if not page:
            return
        for message in page:
            try:
                events = list(events_in(message.body))
            except Invalid as error:
                hint(f"message {message.id} of {JOURNAL} is passed over: {error.says}")
                continue
            ledger.add(events)
            yield from events
        after = page[-1].id


def _wanted(events: Iterator[Happened], queue: str, id: str) -> Iterator[Happened]:
    """`queue`: QUEUE or QUEUE@GROUP."""
    extent, _, number = id.rpartition(":")
    for event in events:
        if queue and queue not in (queue_in(event.queue), event.queue.partition("/")[0]):
            continue
        if id and not (_names(event, number or id) and event.queue.endswith(f"/{extent}" if extent else "")):
            continue
        yield event


def _names(event: Happened, id: str) -> bool:
    if event.ids or not id.isdecimal():
        return id in event.ids
    return any(first <= int(id) < first + count for first, count in event.runs)


def _line(event: Happened) -> str:
    return f"{moment(event.at)} {event.node} {told(event)}"


def _gaps(who: Who, account: Account) -> Iterator[str]:
    """What is known to be missing."""
    of = f"node {who.node}, incarnation {who.incarnation}"
    for first, count in account.missing:
        yield f"{of}: {count} events from {first} on are missing"
    if not account.closed:
        yield f"{of}: no closing record; it runs, or it was killed and what it did last is not known"
