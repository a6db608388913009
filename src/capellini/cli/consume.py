"""`capellini consume`: run a command for each message, or print them; ack what worked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from typing import Any, Final

import click

from capellini.cli.speaking import PATIENCE_S, delivery_json, errors_said, probe, say_body, say_json, talks
from capellini.client.aio import AsyncClient, AsyncMessage
from capellini.client.consuming import Failed, StopConsuming

END_S: Final = 5.0  # that a command gets to end after a second Ctrl-C, before it is killed
INTERRUPTED: Final = 130  # the usual exit code after Ctrl-C


@click.command()
@talks
@click.argument("queue")
@click.option("--exec", "command", metavar="COMMAND", help="A shell command: the body on its stdin, attributes in "
              "CAPELLINI_ATTRIBUTE_NAME; exit code 0 acks, others give the message back.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1, 1_000), default=1, show_default=True, help="At a time.")
@click.option("--visibility", "visibility_s", type=click.FloatRange(0), metavar="SECONDS",
              help="Kept up while a command runs.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--idle", "idle_s", type=click.FloatRange(0), metavar="SECONDS",
              help="Stop after so long without a message.")
def consume(
    at: str, as_json: bool, queue: str, command: str | None, concurrency: int, visibility_s: float | None,
    count: int | None, idle_s: float | None,
) -> None:  # fmt: skip
    """Work through QUEUE until stopped; Ctrl-C finishes what runs, a second one ends it and gives its messages back.

    Without --exec, bodies are printed and acked. With --count or --idle, the exit code is 1 if a message was left that
    its command failed on.
    """
    failed: set[str] = set()  # ids of messages whose last try failed
    unwritable: OSError | None = None

    async def handle(message: AsyncMessage[bytes]) -> None:
        nonlocal unwritable
        if command is not None:
            failed.add(message.id)
            await run_command(command, message)
            failed.discard(message.id)
            return
        try:
            if as_json:
                say_json(delivery_json(message))
            else:
                say_body(message.raw)
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
            await _there(client, queue)
            return await client.consume(
                queue, handle, concurrency=concurrency, visibility_s=visibility_s, count=count, idle_s=idle_s, stop=stop
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


async def _there(client: AsyncClient[bytes], queue: str) -> None:
    """A consumer waits for a node that went away, but not for an address that was never right."""
    await client.show_queue(queue)


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
        "CAPELLINI_QUEUE": message.queue,
        "CAPELLINI_ID": message.id,
        "CAPELLINI_DELIVERIES": str(message.deliveries),
        "CAPELLINI_RECEIPT": message.receipt,
    }
    for name, value in message.attributes.items():
        found[f"CAPELLINI_ATTRIBUTE_{re.sub(r'[^A-Za-z0-9_]', '_', name)}"] = value.replace("\0", "")
    return found
