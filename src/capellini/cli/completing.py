"""What a shell completes beyond verbs and flags: names of queues, of their groups, and of options.

A person waits between two keys: one short question to the node, and silence if it is not there. A folder is asked as
any verb asks it; a Cassandra keyspace is not, because opening one takes longer than typing its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from capellini.cli.speaking import DEFAULT_AT, probe
from capellini.model.address import CassandraAddress, parse
from capellini.model.errors import CapelliniError
from capellini.model.log import AT, GroupOptions

if TYPE_CHECKING:
    from capellini.client.sync import Client

Command = TypeVar("Command", bound=Callable[..., Any])
ANSWER_S: Final = 2.0
MOST_NAMES: Final = 200  # more are no help


def queue_argument(name: str = "queue") -> Callable[[Command], Command]:
    """The argument that names a queue which exists."""
    return click.argument(name, shell_complete=queue_names)


def group_argument(name: str = "group") -> Callable[[Command], Command]:
    """The argument that names a group which exists, of the queue that was named before."""
    return click.argument(name, shell_complete=group_names)


def place_argument(name: str = "queue") -> Callable[[Command], Command]:
    """The argument that names a queue, or QUEUE@GROUP."""
    return click.argument(name, shell_complete=place_names, metavar=f"{name.upper()}[@GROUP]")


def queue_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _asked(ctx, lambda client: [each.name for each in client.list_queues(incomplete)])


def group_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    queue = ctx.params.get("queue")
    if not queue:
        return []
    return _asked(ctx, lambda client: _groups(client, queue, incomplete))


def place_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Queues; after QUEUE@ its groups."""
    queue, at, group = incomplete.partition(AT)
    if not at:
        return queue_names(ctx, param, incomplete)
    return _asked(ctx, lambda client: [f"{queue}{AT}{each}" for each in _groups(client, queue, group)])


def _groups(client: Client[bytes], queue: str, prefix: str) -> list[str]:
    return [each.name for each in client.groups.list(queue) if each.name.startswith(prefix)]


def _asked(ctx: click.Context, ask: Callable[[Client[bytes]], list[str]]) -> list[CompletionItem]:
    from capellini.client.connecting import connect

    at = ctx.params.get("at") or DEFAULT_AT
    try:
        if isinstance(parse(at), CassandraAddress):
            return []
        probe(at)
        with connect(at, patience_s=0.0, request_timeout_s=ANSWER_S) as client:
            return [CompletionItem(each) for each in ask(client)[:MOST_NAMES]]
    except CapelliniError:  # whoever completes a line is told by the command itself what is wrong
        return []


def kind_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from capellini.model.options import KINDS

    return [CompletionItem(kind) for kind in KINDS if kind.startswith(incomplete)]


def group_option_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """NAME=, of a group's options; filters have a flag of their own."""
    names = [name for name in GroupOptions.__struct_fields__ if name != "filter"]
    return [CompletionItem(f"{name}=") for name in names if name.startswith(incomplete)]


def option_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """NAME=: of the kind that was named, else of all."""
    from capellini.model.options import KINDS

    tables = [KINDS[kind]] if (kind := ctx.params.get("kind")) in KINDS else KINDS.values()
    found = {option.name: option.says for table in tables for option in table}
    return [CompletionItem(f"{name}=", help=says) for name, says in found.items() if name.startswith(incomplete)]
