"""`capellini schema`: the tables, as a person would type them."""

from __future__ import annotations

import click


@click.group()
def schema() -> None:
    """The tables, as CQL."""


@schema.command("print")
@click.option("--keyspace", default="capellini", show_default=True, help="Where the tables are made.")
@click.option("--replication", default="3", show_default=True, help="3, or dc1:3,dc2:2; on a single node 1.")
def print_(keyspace: str, replication: str) -> None:
    """Print the statements that make keyspace and tables."""
    from capellini.model.address import REPLICATION_FORMS, is_keyspace, is_replication
    from capellini.model.errors import Invalid
    from capellini.store import cql
    from capellini.store.schema import TABLES

    if not is_keyspace(keyspace):
        raise Invalid(f"{keyspace!r} is no keyspace: use a-z, 0-9 and _, at most 48 characters")
    if not is_replication(replication):
        raise Invalid(f"{replication!r}: {REPLICATION_FORMS}")
    click.echo(cql.schema_text(TABLES, keyspace, replication))
