"""`capellini backup`: a copy of a folder, also while a node runs on it."""

from __future__ import annotations

from pathlib import Path

import click

from capellini.cli.speaking import progressing
from capellini.model.address import CassandraAddress, NodeAddress, RocksAddress, parse
from capellini.model.errors import Invalid


@click.command()
@click.argument("address")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def backup(address: str, target: Path, as_json: bool) -> None:
    """Copy the folder of rocks:FOLDER to TARGET, which must be new or empty.

    The copy is the folder as of one moment; a node that runs on it goes on. To restore it, put it in the folder's
    place, or serve it where it is.
    """
    import msgspec

    from capellini.store.rocks.copying import copy

    with progressing(f"copying rows to {target}") as advance:
        done = copy(folder_of(address), target, advance)
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
    else:
        click.echo(f"{done.folder} is copied to {done.target}: {done.rows} rows, {done.bytes} bytes, {done.took_s:g} s")
        click.echo(f"try it: capellini doctor rocks:{done.target}")


def folder_of(address: str) -> Path:
    """Raises Invalid for what has no folder."""
    match parse(address):
        case RocksAddress(folder=folder):
            return Path(folder)
        case NodeAddress() as node:
            raise Invalid(f"{node} is a node: name the folder it runs on, rocks:FOLDER")
        case CassandraAddress() as cluster:
            raise Invalid(f"{cluster} is on Cassandra: back it up with Cassandra's own tools (nodetool snapshot)")
