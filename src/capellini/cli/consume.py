"""`capellini consume`: run a command for each message, or print them; ack what worked."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import Any

import click

from capellini.cli.speaking import PATIENCE_S, delivery_json, errors_said, probe, say_body, say_json, talks
from capellini.client.aio import AsyncClient, AsyncMessage


class CommandFailed(Exception):
    """The command ended with an exit code that is not 0."""


@click.command()
@talks
@click.argument("queue")
@click.option("--exec", "command", metavar="COMMAND", help="A shell command: the body on its stdin, attributes in "
              "CAPELLINI_ATTRIBUTE_NAME; exit code 0 acks, others give the message back.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1, 1_000), default=1, show_default=True, help="At a time.")
@click.option("--visibility", "visibility_s", type=float, metavar="SECONDS", help="Kept up while a command runs.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--idle", "idle_s", type=float, metavar="SECONDS", help="Stop after so long without a message.")
def consume(
    at: str, as_json: bool, queue: str, command: str | None, concurrency: int, visibility_s: float | None,
    count: int | None, idle_s: float | None,
) -> None:  # fmt: skip
    """Work through QUEUE until stopped; Ctrl-C finishes what runs.

    Without --exec, bodies are printed and acked.
    """

    async def handle(message: AsyncMessage[bytes]) -> None:
        if command is not None:
            await run_command(command, message)
        elif as_json:
            say_json(delivery_json(message))
        else:
            say_body(message.raw)

    async def work() -> int:
        from capellini.client.connecting import connect_async

        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stop.set)
        async with connect_async(at, patience_s=PATIENCE_S) as client:
            await _there(client, queue)
            return await client.consume(
                queue, handle, concurrency=concurrency, visibility_s=visibility_s, count=count, idle_s=idle_s, stop=stop
            )

    with errors_said():
        probe(at)
        handled = asyncio.run(work())
    if command is not None:
        if as_json:
            say_json({"handled": handled})
        else:
            click.echo(f"handled {handled}")


async def _there(client: AsyncClient[bytes], queue: str) -> None:
    """A consumer waits for a node that went away, but not for an address that was never right."""
    await client.show_queue(queue)


async def run_command(command: str, message: AsyncMessage[bytes]) -> None:
    """Raises CommandFailed unless the command ends with 0."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, **environment(message)},
        start_new_session=True,  # Ctrl-C is for this process, which lets the command finish
    )
    await process.communicate(message.raw)
    if process.returncode:
        raise CommandFailed(f"the command ended with {process.returncode}")


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
