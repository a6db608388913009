"""What the verbs that talk to queues share: where to, in which form to answer, and errors that say what to do next.

Answers go to stdout: a table or plain lines for people, JSON for programs (one document, or a line per message).
Everything else (progress, hints, warnings) goes to stderr, and progress only to a terminal.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from capellini.model.address import NODE_PORT, NodeAddress, RocksAddress, parse
from capellini.model.dues import due_of
from capellini.model.errors import (
    CannotOpen,
    CapelliniError,
    Conflict,
    Full,
    Invalid,
    NotFound,
    Paused,
    Unavailable,
    Unknown,
)
from capellini.model.message import Peeked, page_full
from capellini.model.service import Problem
from capellini.store.folder import check_there

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from capellini.client.messages import Held
    from capellini.client.sync import Client

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_AT: Final = f"http://127.0.0.1:{NODE_PORT}"
NODE_AT: Final = "Where the node is: http://HOST:PORT; also from CAPELLINI_AT."
PROBE_S: Final = 3.0
PATIENCE_S: Final = 10.0  # of one call, once a node was there; a person waits with us
SHOWN_CHARS: Final = 60  # of a body in a table
PIPED_WIDTH: Final = 1_000  # a table that is piped is read by a program: no line is broken


def talks(command: Command) -> Command:
    """The options of every verb that talks to queues: `at` and `as_json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Answer in JSON."),
        click.option(
            "--at", envvar="CAPELLINI_AT", default=DEFAULT_AT, show_default=True, metavar="ADDRESS",
            help="http://HOST:PORT, cassandra://HOST/KEYSPACE or rocks:FOLDER; also from CAPELLINI_AT.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


class WrongAsked(click.ClickException):
    """Repeating it is pointless: the caller or an operator has to change something first."""

    exit_code = 2


@contextlib.contextmanager
def errors_said(unknown: str = "") -> Iterator[None]:
    """Errors become a line or two on stderr; exit code 2 for what was asked in the wrong way, else 1. `unknown`: what
    to do when it may have been done, which is another thing for each verb."""
    try:
        yield
    except CapelliniError as error:
        kind = WrongAsked if isinstance(error, Invalid | CannotOpen) else click.ClickException
        raise kind(advice(error, unknown)) from error


def advice(error: CapelliniError, unknown: str = "") -> str:
    """What happened, and what to do next."""
    says = error.says
    if isinstance(error, NotFound) and " no group " in says:
        return f"{says}\nSee `capellini group list QUEUE`, or make it: `capellini group create QUEUE GROUP`."
    if isinstance(error, Conflict) and says.startswith("group "):
        return f"{says}\nSee `capellini group show QUEUE GROUP`; change it with `capellini group set`."
    if isinstance(error, Full) and "max_bytes" in says:
        return f"{says}\nSee who is behind with `capellini group list QUEUE`; raise it with `capellini queue set`."
    if isinstance(error, NotFound) and "queue" in says and "capellini queue" not in says:
        return f"{says}\nSee `capellini queue list`, or make it: `capellini queue create NAME`."
    if isinstance(error, Paused):
        return f"{says}\nEnd the pause with `capellini queue resume NAME`."
    if isinstance(error, Unknown) and unknown and "is this a node" not in says:
        return f"{says}\n{unknown}"
    if isinstance(error, Unavailable) and says.startswith("no connection to http"):
        return f"{says}\nIs a node running? Start one with `capellini serve`, or say where it is with --at ADDRESS."
    return says


def probe(at: str, makes: bool = False) -> None:
    """Is anybody there at all? Asked once, so that a wrong address is said at once and not after long patience; a
    folder that does not exist is made only by verbs that make something."""
    address = parse(at)
    if isinstance(address, RocksAddress) and not makes:
        check_there(Path(address.folder))
    if not isinstance(address, NodeAddress):
        return
    parts = urlsplit(address.url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or NODE_PORT), PROBE_S).close()
    except OSError as error:
        raise Unavailable(f"no connection to {address}: {error}") from error


@contextlib.contextmanager
def talking(at: str, makes: bool = False, unknown: str = "") -> Iterator[Client[bytes]]:
    """A client for a verb; its errors are said as a person needs them, `unknown` as in `errors_said`. `makes`: a new
    folder is fine."""
    from capellini.client.connecting import connect

    with errors_said(unknown):
        probe(at, makes)
        with connect(at, patience_s=PATIENCE_S) as client:
            yield client


# Answers


def say_json(value: object) -> None:
    click.echo(msgspec.json.encode(value).decode())


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    console().print(table_of(columns, [(row, "") for row in rows], title))


def console() -> Console:
    """Where tables go."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def table_of(columns: Sequence[str], rows: Iterable[tuple[Sequence[object], str]], title: str | None = None) -> Table:
    """Each row with its style."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for row, style in rows:
        table.add_row(*(Text("" if value is None else str(value), style=style) for value in row))
    return table


def say_body(body: bytes) -> None:
    out = sys.stdout.buffer
    out.write(body + b"\n")
    out.flush()


def hint(text: str) -> None:
    click.echo(text, err=True)


def shown(body: bytes) -> str:
    """A body in a table: one short line."""
    text = body[: SHOWN_CHARS * 4].decode("utf-8", "backslashreplace")
    line = "".join(each if each.isprintable() else "·" for each in text)
    return line if len(line) <= SHOWN_CHARS and len(body) <= SHOWN_CHARS * 4 else f"{line[: SHOWN_CHARS - 1]}…"


def delivery_json(message: Held[Any], receipt: str | None = None) -> object:
    """A message as the REST API writes it. `receipt`: instead of its own."""
    from capellini.api.wire import json_delivery
    from capellini.model.message import Delivery

    proof = message.receipt if receipt is None else receipt
    return json_delivery(
        Delivery(
            message.id, proof, message.raw, message.attributes, message.put_at, message.deliveries, message.visible_at
        )
    )


def say_peeked(found: Sequence[Peeked], as_json: bool, count: int, empty: str) -> None:
    from capellini.api.wire import json_peeked

    if as_json:
        for each in found:
            say_json(json_peeked(each))
        return
    if not found:
        hint(empty)
        return
    heads = ["id", "state", "deliveries", "put at", "body"]
    rows = [[each.id, each.state, each.deliveries, moment(each.put_at), shown(each.body)] for each in found]
    if any(each.origin for each in found):
        heads.append("was")
        for row, each in zip(rows, found, strict=True):
            row.append(each.origin)
    say_table(heads, rows)
    if page_full(found, count):
        hint(f"there may be more: --after {found[-1].id}")


def moment(seconds: float | None) -> str:
    """A time of day for people, in UTC."""
    import datetime

    if seconds is None:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def say_done(results: Sequence[object], names: Sequence[str], as_json: bool, done: str) -> None:
    """The results of items: good ones counted, bad ones named; exit code 1 if any is bad."""
    bad = [(name, result) for name, result in zip(names, results, strict=True) if isinstance(result, Problem)]
    if as_json:
        for result in results:
            say_json(result)
    else:
        if len(bad) < len(results):
            click.echo(f"{done} {len(results) - len(bad)}")
        for name, problem in bad:
            hint(f"{name}: {problem.says}")
    if bad:
        raise click.exceptions.Exit(1)


def due_argument(text: str) -> float:
    """A time as it was given; wrong ones are said like all errors."""
    with errors_said():
        return due_of(text)


def pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    """NAME=VALUE arguments."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{what} is given as NAME=VALUE, not {text!r}")
        found[name] = value
    return found


def option_values(texts: Sequence[str], kind: str) -> dict[str, float | str]:
    """NAME=VALUE arguments for queue options: numbers are read as the option table says."""
    from capellini.model.options import KINDS

    types = {option.name: option.type for option in KINDS.get(kind, ())}
    values: dict[str, float | str] = {}
    for name, text in pairs(texts, "an option").items():
        if name in ("kind", "name"):
            raise click.UsageError(f"{name} is no option of a queue; its kind is given as --kind when it is created")
        if types.get(name, str) is str:
            values[name] = text
            continue
        try:
            values[name] = types[name](text)
        except ValueError:
            noun = "a whole number" if types[name] is int else "a number"
            raise click.UsageError(f"{name} is {noun}, not {text!r}") from None
    return values


def confirmed(question: str, yes: bool) -> None:
    """Asks a person; a program has to say --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone: say --yes if you mean it")
    click.confirm(question, abort=True, err=True)


@contextlib.contextmanager
def progressing(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A line that moves, for people: call what it gives with how many more are done; a bar where it is known of how
    many."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = () if total is None else (BarColumn(),)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *bar, MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
