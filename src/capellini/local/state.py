"""What is known of a cluster between two commands: one JSON file, replaced in one step.

It names every process with its start time, so that any later command, also after a crash of the first, finds what
runs.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from capellini.local.addresses import address_of, jmx_port_of
from capellini.local.config import HEAP_MB, CommitlogSync, Jvm, NodeConfig, tokens_of
from capellini.local.errors import ClusterError
from capellini.local.jars import replace_file
from capellini.local.processes import ProcessId

STATE_FILE = "state.json"


class Unreadable(ClusterError):
    """The file of a cluster's state is there and holds none."""


class Shape(msgspec.Struct, frozen=True):
    """What a user chooses about a new cluster."""

    nodes: int
    dcs: int = 1
    netns: bool = False
    commitlog_sync: CommitlogSync = "batch"
    jvm: Jvm = "quick"
    tls: bool = False
    passwords: bool = False
    heap_mb: int = HEAP_MB


class NodeState(msgspec.Struct, frozen=True):
    """One node: what it is, and the process that runs it, if any."""

    config: NodeConfig
    process: ProcessId | None = None


class ClusterState(msgspec.Struct, frozen=True):
    """One cluster. `owner` is the process it must not outlive; without one it stays until taken down."""

    name: str
    subnet: int
    netns: bool
    nodes: tuple[NodeState, ...]
    owner: ProcessId | None = None
    cuts: tuple[tuple[int, int], ...] = ()

    def node(self, number: int) -> NodeState | None:
        """The node with that number, from 1."""
        return self.nodes[number - 1] if 1 <= number <= len(self.nodes) else None

    def with_process(self, number: int, process: ProcessId | None) -> ClusterState:
        """The same cluster, one node's process changed."""
        nodes = tuple(NodeState(node.config, process) if node.config.number == number else node for node in self.nodes)
        return msgspec.structs.replace(self, nodes=nodes)


def load(folder: Path) -> ClusterState | None:
    """The state in a folder; None if there is none. Raises Unreadable."""
    try:
        raw = (folder / STATE_FILE).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(raw, type=ClusterState)
    except msgspec.MsgspecError as error:  # a power cut, or another version
        raise Unreadable(
            f"{folder / STATE_FILE} cannot be read ({error}): `capellini cluster down` clears it"
        ) from None


def save(folder: Path, state: ClusterState) -> None:
    """Replace the state in a folder in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / STATE_FILE, msgspec.json.format(msgspec.json.encode(state)))


def node_folder(folder: Path, number: int) -> Path:
    """Where one node keeps its files."""
    return folder / f"node{number}"


def plan(name: str, folder: Path, subnet: int, shape: Shape, owner: ProcessId | None) -> ClusterState:
    """A new cluster on paper: every node's settings, no process yet."""
    numbers = range(1, shape.nodes + 1)
    everyone = tuple(address_of(subnet, number, shape.netns) for number in numbers)
    planned = tuple(
        NodeState(
            NodeConfig(
                number=number,
                cluster=name,
                folder=str(node_folder(folder, number)),
                address=everyone[number - 1],
                seeds=everyone,
                dc=f"dc{(number - 1) % shape.dcs + 1}",
                jmx_port=jmx_port_of(subnet, number),
                tokens=tokens_of(number, shape.nodes),
                commitlog_sync=shape.commitlog_sync,
                jvm=shape.jvm,
                tls=shape.tls,
                passwords=shape.passwords,
                heap_mb=shape.heap_mb,
            )
        )
        for number in numbers
    )
    return ClusterState(name=name, subnet=subnet, netns=shape.netns, nodes=planned, owner=owner)
