"""`capellini cluster`: a real Cassandra cluster on this machine, and faults to try on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from capellini.cli.speaking import progressing
from capellini.local.addresses import MOST_NODES
from capellini.local.cluster import LocalCluster
from capellini.local.config import COMMITLOG_SYNCS, JVMS
from capellini.local.errors import ClusterError

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def cluster() -> None:
    """Run a real Cassandra cluster on this machine, to try and to test."""


def common(command: Command) -> Command:
    """The options every verb has."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Answer in JSON."),
        click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Keep the cluster here."),
        click.option("--name", default="default", show_default=True, help="Which cluster."),
    ):
        command = option(command)
    return command


def act(name: str, folder: Path | None, as_json: bool, what: Callable[[LocalCluster], None]) -> None:
    """Do it, then show the cluster; what cannot be done is one line and exit code 1."""
    try:
        chosen = LocalCluster(name, folder)
        what(chosen)
        show(chosen, as_json)
    except ClusterError as failed:
        raise click.ClickException(str(failed)) from failed


def show(chosen: LocalCluster, as_json: bool) -> None:
    """Print the cluster as it is now."""
    nodes, cuts = chosen.status(), chosen.cuts
    if as_json:
        answer = {"name": chosen.name, "folder": str(chosen.folder), "nodes": nodes, "cuts": cuts}
        click.echo(msgspec.json.encode(answer).decode())
        return
    if not nodes:
        click.echo(f"cluster {chosen.name}: not running")
        return
    click.echo(f"cluster {chosen.name}: contact points {chosen.contact_points()}")
    if chosen.ca_file.exists():
        click.echo(f"  certificate to trust: {chosen.ca_file}")
    for node in nodes:
        answers = "answers" if node.answers else "silent"
        pid = f"pid {node.pid}" if node.pid else ""
        click.echo(f"  {node.number}  {node.address:<14} {node.dc}  {node.state:<8} {answers:<8} {pid}".rstrip())
    for one, other in cuts:
        click.echo(f"  link {one} - {other} is cut")


@cluster.command()
@common
@click.option("--nodes", type=click.IntRange(1, MOST_NODES), default=3, show_default=True, help="How many.")
@click.option("--dcs", type=click.IntRange(1, 2), default=1, show_default=True, help="Data centres; nodes take turns.")
@click.option("--commitlog-sync", type=click.Choice(COMMITLOG_SYNCS), default="batch", show_default=True,
              help="When a write is confirmed: periodic does so before it is on disk.")  # fmt: skip
@click.option("--jvm", type=click.Choice(JVMS), default="quick", show_default=True, help="full: for benchmarks.")
@click.option("--tls", is_flag=True, help="Clients must speak TLS; the certificate to trust is printed.")
@click.option("--passwords", is_flag=True, help="Clients need a user and password: cassandra and cassandra.")
@click.option("--netns", is_flag=True, help="A network namespace per node, so that links can be cut (root).")
def up(name: str, folder: Path | None, as_json: bool, **shape: Any) -> None:
    """Start a cluster and wait until its nodes reach each other."""

    def start_all(chosen: LocalCluster) -> None:
        with progressing(f"starting cluster {chosen.name}", shape["nodes"]) as advance:
            chosen.up(**shape, progress=advance)

    act(name, folder, as_json, start_all)


@cluster.command()
@common
@click.option("--keep", is_flag=True, help="Keep the data: `up` goes on with it.")
def down(name: str, folder: Path | None, as_json: bool, keep: bool) -> None:
    """End all its processes and remove its data."""
    act(name, folder, as_json, lambda chosen: chosen.down(keep))


@cluster.command()
@common
def status(name: str, folder: Path | None, as_json: bool) -> None:
    """Show each node: running, paused or down, and whether it answers."""
    act(name, folder, as_json, lambda chosen: None)


@cluster.command()
@common
@click.argument("node", type=int)
def kill(name: str, folder: Path | None, as_json: bool, node: int) -> None:
    """End a node at once, as a power cut would."""
    act(name, folder, as_json, lambda chosen: chosen.kill(node))


@cluster.command()
@common
@click.argument("node", type=int)
def pause(name: str, folder: Path | None, as_json: bool, node: int) -> None:
    """Stop a node in its tracks: connections stay open, nothing answers."""
    act(name, folder, as_json, lambda chosen: chosen.pause(node))


@cluster.command()
@common
@click.argument("node", type=int)
def resume(name: str, folder: Path | None, as_json: bool, node: int) -> None:
    """Let a paused node go on, and wait until the others see it."""
    act(name, folder, as_json, lambda chosen: chosen.resume(node))


@cluster.command()
@common
@click.argument("node", type=int)
def start(name: str, folder: Path | None, as_json: bool, node: int) -> None:
    """Start a node that is down, with the data it has."""
    act(name, folder, as_json, lambda chosen: chosen.start(node))


@cluster.command()
@common
@click.argument("one", type=int)
@click.argument("other", type=int)
def cut(name: str, folder: Path | None, as_json: bool, one: int, other: int) -> None:
    """Cut the link between two nodes (a cluster brought up with --netns)."""
    act(name, folder, as_json, lambda chosen: chosen.cut(one, other))


@cluster.command()
@common
def heal(name: str, folder: Path | None, as_json: bool) -> None:
    """Join all links again, and wait until the nodes see each other."""

    def heal_and_wait(chosen: LocalCluster) -> None:
        chosen.heal()
        chosen.wait_healthy(only_running=True)

    act(name, folder, as_json, heal_and_wait)
