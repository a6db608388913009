"""`capellini consume`: run a command for each message, or print them; ack what worked.

Messages of a log queue that are only printed come through a stream, and are acked as they came, many together.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from capellini.cli.completing import place_argument
from capellini.cli.speaking import PATIENCE_S, delivery_json, errors_said, hint, probe, say_json, talks
from capellini.client.aio import AsyncClient
from capellini.client.consuming import Failed, StopConsuming
from capellini.client.messages import AsyncMessage
from capellini.model.errors import Stale
from capellini.model.log import DEFAULT_GROUP, split_name
from capellini.model.service import Problem

if TYPE_CHECKING:
    from capellini.client.async_streams import AsyncBatch, AsyncConsumer

PRINTED: Final = 10  # at a time: more would be lost to a reader that goes away before it has read them
END_S: Final = 5.0  # that a command gets to end after a second Ctrl-C, before it is killed
AHEAD: Final = 10_000  # messages of a log queue that may wait here to be printed
BROUGHT_S: Final = 1.0  # that a stream has at least to bring what is there: with less it would be taken for nothing
LATE: Final = "they come again: give them more time with --visibility SECONDS"
INTERRUPTED: Final = 130  # the usual exit code after Ctrl-C


@click.command()
@talks
@place_argument()
@click.option("--exec", "command", metavar="COMMAND", help="A shell command: the body on its stdin, attributes in "
              "CAPELLINI_ATTRIBUTE_NAME; exit code 0 acks, others give the message back.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1, 1_000), help="At a time: 1 unless given, or where nothing is "
              f"executed {PRINTED}, so that acks go together.")  # fmt: skip
@click.option(
    "--visibility", "visibility_s", type=click.FloatRange(0), metavar="SECONDS", help="Kept up while a command runs."
)
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option(
    "--idle", "idle_s", type=click.FloatRange(0), metavar="SECONDS", help="Stop after so long without a message."
)
def consume(
    at: str, as_json: bool, queue: str, command: str | None, concurrency: int | None, visibility_s: float | None,
    count: int | None, idle_s: float | None,
) -> None:  # fmt: skip
    """Work through QUEUE until stopped; Ctrl-C finishes what runs, a second one ends it and gives its messages back.

    Without --exec, bodies are printed and acked. With --count or --idle, the exit code is 1 if a message was left that
    its command failed on.
    """
    if command is not None and not command.strip():
        raise click.UsageError("--exec is empty: a shell takes that for done, and every message would be acked")
    failed: set[str] = set()  # ids of messages whose last try failed
    unwritable: OSError | None = None

    async def handle(message: AsyncMessage[bytes]) -> None:
        if command is not None:
            failed.add(message.id)
            await run_command(command, message)
            failed.discard(message.id)
            return
        say([json_line(message)] if as_json else [message.raw])

    def say(lines: list[bytes]) -> None:
        """Raises StopConsuming."""
        nonlocal unwritable
        try:
            sys.stdout.buffer.write(b"".join([line + b"\n" for line in lines]))
            sys.stdout.flush()  # acked means that it was handed on
        except OSError as error:  # nobody reads any more, or the disk is full: the next one would fail like this one
            unwritable = error
            raise StopConsuming from error

    async def work() -> int:
        from capellini.client.connecting import connect_async

        stop = asyncio.Event()
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def asked_to_stop() -> None:
            task.cancel() if stop.is_set() else stop.set()

        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, asked_to_stop)
        async with connect_async(at, patience_s=PATIENCE_S) as client:
            kind = await _there(client, queue)
            if kind == "log" and command is None:
                ends = Ends(visibility_s, count, None if idle_s is None else max(idle_s, BROUGHT_S), stop)
                return await print_all(client, queue, ends, as_json, say)
            at_once = concurrency or (PRINTED if command is None else 1)
            return await client.consume(
                queue, handle, concurrency=at_once, visibility_s=visibility_s, count=count, idle_s=idle_s, stop=stop
            )

    with errors_said():
        probe(at)
        try:
            handled = asyncio.run(work())
        except asyncio.CancelledError:
            sys.exit(INTERRUPTED)
    if unwritable is not None:
        _cannot_write(unwritable)
    if command is not None:
        if as_json:
            say_json({"handled": handled, "failed": len(failed)})
        else:
            click.echo(f"handled {handled}" + (f", failed {len(failed)}" if failed else ""))
        if failed and (count is not None or idle_s is not None):
            sys.exit(1)


def _cannot_write(error: OSError) -> None:
    """Ends the process: what was not written was given back."""
    if isinstance(error, BrokenPipeError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # or the interpreter complains of it once more at its end
    click.echo(f"Error: cannot write what was got ({error.strerror}): it was given back to the queue", err=True)
    sys.exit(1)


async def _there(client: AsyncClient[bytes], queue: str) -> str:
    """The queue's kind. A consumer waits for a node that went away, but not for an address or a name that was never
    right."""
    name, group = split_name(queue)
    info = await client.show_queue(name)
    if group != DEFAULT_GROUP:  # that is made at its first use
        await client.groups.show(name, group)
    return info.kind


class Ends(msgspec.Struct, frozen=True):
    """When to stop printing."""

    visibility_s: float | None
    count: int | None
    idle_s: float | None
    stop: asyncio.Event


async def print_all(
    client: AsyncClient[bytes], queue: str, ends: Ends, as_json: bool, say: Callable[[list[bytes]], None]
) -> int:
    """Hand on what a stream brings, and ack it; how many messages. While one batch is acked the next is printed."""
    name, group = split_name(queue)
    handled = 0
    ahead = AHEAD if ends.count is None else min(AHEAD, ends.count)
    stopping = asyncio.ensure_future(ends.stop.wait())
    acking: asyncio.Task[None] | None = None
    try:
        async with client.stream(name, group=group, ahead=ahead, visibility_s=ends.visibility_s) as consumer:
            while not ends.stop.is_set() and handled != ends.count:
                coming = asyncio.ensure_future(consumer.batch(ends.idle_s))
                await asyncio.wait((coming, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    break
                if not (batch := coming.result()):
                    break  # idle for so long
                take = len(batch) if ends.count is None else min(len(batch), ends.count - handled)
                try:
                    say(lines_of(batch, as_json)[:take])
                except StopConsuming:
                    await batch.nack(0.0)
                    break
                if acking is not None:
                    await acking
                if take < len(batch):  # the last ones: what nobody was shown goes back with the stream's end
                    messages = list(batch)
                    consumer.left.extend(messages[take:])
                    acking = asyncio.create_task(_acked_some(consumer, messages[:take]))
                else:
                    acking = asyncio.create_task(_acked(batch))
                handled += take
            if acking is not None:
                await acking
    finally:
        stopping.cancel()
    return handled


async def _acked(batch: AsyncBatch[AsyncMessage[bytes]]) -> None:
    try:
        await batch.ack()
    except Stale as error:
        hint(f"{error.says}; {LATE}")


async def _acked_some(consumer: AsyncConsumer[AsyncMessage[bytes]], messages: list[AsyncMessage[bytes]]) -> None:
    for result in await consumer.ack_many(messages):
        if isinstance(result, Problem):
            if result.error != Stale.name:
                raise result.raised()
            return hint(f"{result.says}; {LATE}")


def lines_of(batch: AsyncBatch[AsyncMessage[bytes]], as_json: bool) -> list[bytes]:
    """Messages of a stream are acked with their batch: they have no receipts."""
    return [json_line(message, "") for message in batch] if as_json else batch.raws


def json_line(message: AsyncMessage[bytes], receipt: str | None = None) -> bytes:
    return msgspec.json.encode(delivery_json(message, receipt))


async def run_command(command: str, message: AsyncMessage[bytes]) -> None:
    """Raises Failed unless the command ends with 0."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, **environment(message)},
        start_new_session=True,  # Ctrl-C is for this process, which lets the command finish
    )
    try:
        await process.communicate(message.raw)
    except asyncio.CancelledError:
        await _end(process)
        raise
    if process.returncode:
        raise Failed(f"the command ended with {process.returncode}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """The command and what it started."""
    for each in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, each)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
                return


def environment(message: AsyncMessage[Any]) -> dict[str, str]:
    """What the command is told beside the body. Names and values take the forms that an environment can hold."""
    found = {
        "CAPELLINI_QUEUE": message.queue,  # of a group: QUEUE@GROUP, as its receipt wants it
        "CAPELLINI_ID": message.id,
        "CAPELLINI_DELIVERIES": str(message.deliveries),
        "CAPELLINI_RECEIPT": message.receipt,
    }
    for name, value in message.attributes.items():
        found[f"CAPELLINI_ATTRIBUTE_{re.sub(r'[^A-Za-z0-9_]', '_', name)}"] = value.replace("\0", "")
    return found
