"""`capellini put`: one message, a file, or one message per line."""

from __future__ import annotations

import itertools
import sys
from typing import BinaryIO, Final

import click

from capellini.cli.speaking import due_argument, hint, pairs, progressing, say_json, talking, talks
from capellini.model.message import NewMessage
from capellini.model.service import Problem, Put

LINES_AT_A_TIME: Final = 4_000  # a few requests beside each other, and a progress bar that moves
BAD_SHOWN: Final = 5


@click.command()
@talks
@click.argument("queue")
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
    """Put BODY into QUEUE; without BODY, one message per line of what is piped in."""
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
    with talking(at) as client:
        (result,) = client.put_many(queue, [NewMessage(raw, given, delay_s, key, when)])
        if isinstance(result, Problem):
            raise result.raised()
    if as_json:
        say_json(result)
    else:
        click.echo(f"{result.id} (put before, with this key)" if result.duplicate else result.id)


def _put_lines(
    at: str, as_json: bool, queue: str, source: BinaryIO, attributes: dict[str, str], delay_s: float, due: float | None
) -> None:
    done = bad = 0
    lines = (line.rstrip(b"\r\n") for line in source)
    with talking(at) as client, progressing(f"putting into {queue}") as advance:
        client.show_queue(queue)  # said before the first line is read
        while bodies := list(itertools.islice(lines, LINES_AT_A_TIME)):
            results = client.put_many(queue, bodies, attributes=attributes, delay_s=delay_s, due=due)
            for number, result in enumerate(results, done + bad + 1):
                if isinstance(result, Put):
                    continue
                if bad < BAD_SHOWN:
                    hint(f"line {number}: {result.says}")
                bad += 1
            done += sum(isinstance(result, Put) for result in results)
            if as_json:
                for result in results:
                    say_json(result)
            advance(len(results))
    if not as_json:
        click.echo(f"put {done}")
    if bad:
        raise click.ClickException(f"{bad} of {done + bad} lines were not put; the first are named above")
