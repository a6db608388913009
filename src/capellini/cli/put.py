"""`capellini put`: one message, a file, or one message per line."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from capellini.cli.completing import queue_argument
from capellini.cli.lines import lines_of
from capellini.cli.speaking import due_argument, hint, pairs, progressing, say_json, talking, talks
from capellini.model.errors import CapelliniError, TooLarge
from capellini.model.log import Appended
from capellini.model.message import NewMessage
from capellini.model.service import Problem, Put, QueueInfo

if TYPE_CHECKING:
    from capellini.client.sync import Client

BAD_SHOWN: Final = 5
UNKNOWN: Final = "Look with `capellini peek QUEUE` before you repeat it; puts with --key can be repeated safely."


@click.command()
@talks
@queue_argument()
@click.argument("body", required=False)
@click.option("--file", "file", type=click.File("rb"), help="The body is this file ('-': stdin).")
@click.option("--lines", is_flag=True, help="One message per line, of stdin or of --file.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Again for more.")
@click.option("--delay", "delay_s", type=float, default=0.0, metavar="SECONDS", help="Offered only after so long.")
@click.option("--due", metavar="TIME", help="Timed queues: delivered then, as in 2030-01-31T08:00:00Z.")
@click.option("--key", help="Idempotency key: the same again adds nothing.")
def put(
    at: str, as_json: bool, queue: str, body: str | None, file: BinaryIO | None, lines: bool,
    attributes: tuple[str, ...], delay_s: float, due: str | None, key: str | None,
) -> None:  # fmt: skip
    """Put BODY into QUEUE; without BODY, or with '-', one message per line of what is piped in."""
    if body == "-" and file is None:
        body, lines = None, True
    if body is not None and (file is not None or lines):
        raise click.UsageError("give either BODY, --file or --lines")
    if body is None and file is None:
        if sys.stdin.isatty() and not lines:
            raise click.UsageError("give BODY or --file, or pipe in one message per line")
        lines = True
    given = pairs(attributes, "an attribute")
    when = None if due is None else due_argument(due)
    if lines:
        if key is not None:
            raise click.UsageError("--key is for one message, not for lines")
        source = file or sys.stdin.buffer
        _put_lines(at, as_json, queue, source, given, delay_s, when)
        return
    raw = body.encode("utf-8", "surrogateescape") if body is not None else file.read() if file else b""
    with talking(at, unknown=UNKNOWN) as client:
        (result,) = client.put_many(queue, [NewMessage(raw, given, delay_s, key, when)])
        if isinstance(result, Problem):
            raise result.raised()
    if as_json:
        say_json(result)
    else:
        click.echo(f"{result.id} (put before, with this key)" if result.duplicate else result.id)


Putter = Callable[[list[bytes]], Sequence[Put | Problem]]


def _put_lines(
    at: str, as_json: bool, queue: str, source: BinaryIO, attributes: dict[str, str], delay_s: float, due: float | None
) -> None:
    done = bad = 0
    with talking(at, unknown=UNKNOWN) as client, progressing(f"putting into {queue}") as advance:
        info = client.show_queue(queue)  # said before the first line is read
        with _putting(client, info, attributes, delay_s, due, as_json) as put_all:
            try:
                for bodies in lines_of(source):
                    results = put_all(bodies)
                    for number, result in enumerate(results, done + bad + 1):
                        if isinstance(result, Problem):
                            if bad < BAD_SHOWN:
                                hint(f"line {number}: {result.says}")
                            bad += 1
                    done += sum(isinstance(result, Put) for result in results)
                    if as_json:
                        for result in results:
                            say_json(result)
                    advance(len(results))
            except (CapelliniError, click.ClickException, OSError, KeyboardInterrupt):  # of the queue, or of the lines
                hint(f"of the lines before line {done + bad + 1}, {done} were put; of those from it on some may be")
                raise
    if not as_json:
        click.echo(f"put {done}")
    if bad:
        raise click.ClickException(f"{bad} of {done + bad} lines were not put; the first are named above")


@contextlib.contextmanager
def _putting(
    client: Client[bytes], info: QueueInfo, attributes: dict[str, str], delay_s: float, due: float | None, named: bool
) -> Iterator[Putter]:
    """How lines are put: through a stream if it is a log queue, else in requests. `named`: ids are wanted."""
    if info.kind != "log" or delay_s or due is not None:
        yield lambda bodies: client.put_many(info.name, bodies, attributes=attributes, delay_s=delay_s, due=due)
        return
    most = int(info.options["body_limit"])
    with client.stream_put(info.name) as producer:

        def put_all(bodies: list[bytes]) -> Sequence[Put | Problem]:
            """A line that is too long is told apart here: a stream refuses what travels together as a whole."""
            good = [body for body in bodies if len(body) <= most]
            places = producer.put_many(good, attributes=attributes) if good else []
            puts = _puts(places) if named else itertools.repeat(Put(""))
            if len(good) == len(bodies):
                return list(itertools.islice(puts, len(bodies)))
            return [next(puts) if len(body) <= most else _too_large(body, most) for body in bodies]

        yield put_all


def _puts(places: Sequence[Appended]) -> Iterator[Put]:
    for place in places:
        for number in range(place.first, place.first + place.count):
            yield Put(f"{place.extent}:{number}" if place.extent else "", place.duplicate)


def _too_large(body: bytes, most: int) -> Problem:
    return Problem(TooLarge.name, f"a body has {len(body)} bytes; this queue takes at most {most}")
