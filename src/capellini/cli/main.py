"""`capellini`: one command, a verb each. A verb's module is imported when it is used, so that the command starts fast.

Errors are one sentence. Exit codes: 0 done, 1 it did not work, 2 it was asked for in the wrong way or an operator must
act.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

import click

from capellini import __version__
from capellini.cli.installed import importing

VERBS: Final = {  # verb: where it is, and what the list of verbs says about it
    "serve": ("capellini.cli.serve:serve", "Run a node."),
    "queue": ("capellini.cli.queue:queue", "Create, list, show, change, pause, purge and delete queues."),
    "put": ("capellini.cli.put:put", "Put messages."),
    "get": ("capellini.cli.get:get", "Get messages."),
    "ack": ("capellini.cli.ack:ack", "Be done with messages."),
    "nack": ("capellini.cli.nack:nack", "Give messages back."),
    "peek": ("capellini.cli.peek:peek", "Look at messages without taking them."),
    "consume": ("capellini.cli.consume:consume", "Run a command for each message."),
    "dead": ("capellini.cli.dead:dead", "Look at dead letters, move them back, purge them."),
    "group": ("capellini.cli.group:group", "Consumer groups of log queues: where each is, and from where it goes on."),
    "schedule": ("capellini.cli.schedule:schedule", "Messages that come again and again."),
    "timed": ("capellini.cli.timed:timed", "Look at timed queues: what is due, and who works which shard."),
    "debug": ("capellini.cli.debug:debug", "Look inside a queue."),
    "health": ("capellini.cli.health:health", "Is a node alive and ready."),
    "drain": ("capellini.cli.drain:drain", "Let a node finish its work and take no new."),
    "doctor": ("capellini.cli.doctor:doctor", "Find out what is wrong with a store or a node."),
    "backup": ("capellini.cli.backup:backup", "Copy a folder, also while a node runs on it."),
    "schema": ("capellini.cli.schema:schema", "The tables, as CQL."),
    "cluster": ("capellini.cli.cluster:cluster", "A real Cassandra cluster on this machine."),
    "bench": ("capellini.cli.bench:bench", "Measure."),
    "simulate": ("capellini.cli.simulate:simulate", "Try to break the promises, with a seed."),
    "pipeline": ("capellini.cli.pipeline:pipeline", "Archive, audit, replay and load very many messages, on Spark."),
    "counter": ("capellini.cli.counter:counter", "Order-free counters."),
    "completion": ("capellini.cli.completion:completion", "The completion script of a shell."),
}


class Verbs(click.Group):
    """A group whose verbs are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name][0].partition(":")
        with importing(cmd_name):
            command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            if near := difflib.get_close_matches(args[0], VERBS):
                raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Without importing any of them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, says) for verb, (_, says) in VERBS.items()])


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="capellini")
def capellini() -> None:
    """A message queue on the Cassandra you already have, or on nothing but a folder."""


def main() -> None:
    from capellini.model.errors import CannotOpen, CapelliniError, Invalid

    _stand_in()
    try:
        capellini.main(standalone_mode=True)
    except CapelliniError as error:
        click.echo(f"Error: {error.says}", err=True)
        sys.exit(2 if isinstance(error, CannotOpen | Invalid) else 1)
    except OSError as error:  # a full disk under the output, as a rule
        click.echo(f"Error: {error}; what was asked for may have been done all the same", err=True)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # or the interpreter complains of it once more at its end
        sys.exit(1)


def _stand_in() -> None:
    """What the caller has closed (`>&-`) is opened on nothing: else the next socket gets its number, and libuv aborts
    at the end of one that is numbered like stdout."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


if __name__ == "__main__":
    main()
