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
    from capellini.model.address import parse
    from capellini.store import cql
    from capellini.store.schema import TABLES

    parse(f"cassandra://localhost/{keyspace}?replication={replication}")  # refuses what is no keyspace
    click.echo(cql.schema_text(TABLES, keyspace, replication))
