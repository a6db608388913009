"""A real Cassandra cluster on this machine, made for tests: up in seconds, every fault one call away.

    cluster = LocalCluster("mine")
    cluster.up(nodes=3)              # returns when every node reaches every other
    cluster.pause(2); cluster.resume(2); cluster.kill(3); cluster.start(3)
    cluster.down()                   # nothing is left: no process, no folder, no namespace

Every call reads the state in the folder, acts, and writes it back, under a lock: calls may come from different
processes, and after a crash the next call finds everything. A process that never got written down is found by its
command line, which holds the node's folder.

"Up" means: each node, asked as coordinator, answers a read that needs *all* nodes. That fails at once while one of them
is not seen up, so it proves the whole mesh and not just open ports.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from capellini.local import addresses, config, cql, jars, network, processes, state
from capellini.local import tls as certificates
from capellini.local.config import CommitlogSync, Jvm
from capellini.local.errors import ClusterError
from capellini.local.health import (
    NOT_TOLD,
    NodeStatus,
    check_alone,
    check_whole,
    node_status,
    process_state,
    tell_again,
    works,
)
from capellini.local.processes import ProcessId
from capellini.local.state import STATE_FILE, ClusterState, NodeState, Shape, node_folder

UP_TIMEOUT_S = 180.0  # 20 s on an idle machine with two cores; busy ones take several times that
POLL_S = 0.25
TELL_AGAIN_S = 15.0  # longer than any node takes that was told
GRACE_S = 20.0  # a node told to end flushes its memory first

Progress = Callable[[int], object]  # called with how many more nodes are there


class LocalCluster:
    """One cluster by name; the object holds nothing but where its folder is."""

    def __init__(self, name: str = "default", folder: Path | None = None) -> None:
        if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
            raise ClusterError(f"a cluster's name is made of letters, digits, - and _: not {name!r}")
        self.name = name
        self.folder = folder.absolute() if folder else clusters_folder() / name

    # ---- life

    def up(
        self,
        nodes: int = 3,
        dcs: int = 1,
        *,
        commitlog_sync: CommitlogSync = "batch",
        netns: bool = False,
        owner: ProcessId | None = None,
        jvm: Jvm = "quick",
        tls: bool = False,
        passwords: bool = False,
        heap_mb: int = config.HEAP_MB,
        timeout_s: float = UP_TIMEOUT_S,
        progress: Progress = lambda nodes: None,
    ) -> None:
        """Start the cluster and wait until all nodes reach each other; `progress` is called as each of them does.

        A cluster of this name that was taken down with its data kept is started again as it was, and one that runs
        is completed; both must have been asked for alike. `tls` and `passwords` are what clients must have: see
        `ca_file` and `config.FIRST_USER`. With an `owner` it is a leftover once that process died.
        """
        if not 1 <= nodes <= addresses.MOST_NODES or not 1 <= dcs <= min(2, nodes):
            raise ClusterError(f"1 to {addresses.MOST_NODES} nodes in 1 or 2 data centres, at least one in each")
        shape = Shape(nodes, dcs, netns, commitlog_sync, jvm, tls, passwords, heap_mb)
        with self._locked():
            now = state.load(self.folder) or self._new(shape, owner)
            check_shape(now, shape)
            if netns and not network.exists("link", "show", addresses.bridge_of(now.subnet)):
                network.build(now.subnet, nodes)
            for number in range(1, nodes + 1):
                now = self._start(now, number)
        self.wait_healthy(timeout_s, progress=progress)

    def down(self, keep: bool = False) -> None:
        """End every process; remove the data too unless `keep`. Nothing happens where nothing is. A state that cannot
        be read goes, too: what runs is found by its command line."""
        with self._locked():
            now = self._state_or_none(keep)
            recorded = [node.process for node in now.nodes if node.process] if now else []
            unrecorded = [
                process
                for number in range(1, addresses.MOST_NODES + 1)
                for process in processes.find_by_argument(storage_argument(self.folder, number))
            ]
            for process in {*recorded, *unrecorded}:
                processes.stop(process, GRACE_S if keep else 0)
            if now and keep:
                for node in now.nodes:
                    now = now.with_process(node.config.number, None)
                state.save(self.folder, msgspec.structs.replace(now, cuts=(), owner=None))
            if now and now.netns:
                network.remove(now.subnet, len(now.nodes))
            if not keep:
                self._remove_files()

    def kill(self, number: int) -> None:
        """End a node at once, as a power cut of its process would."""
        with self._locked():
            now, node = self._node(number)
            if node.process:
                processes.stop(node.process, grace_s=0)
            state.save(self.folder, now.with_process(number, None))

    def start(self, number: int, wait: bool = True, timeout_s: float = UP_TIMEOUT_S) -> None:
        """Start a node that is down, with the data it has; `wait` until all running nodes reach each other."""
        with self._locked():
            now, _ = self._node(number)
            self._start(now, number)
        if wait:
            self.wait_healthy(timeout_s, only_running=True)

    def pause(self, number: int) -> None:
        """Stop a node in its tracks: its connections stay open and nothing answers."""
        self._signal(number, signal.SIGSTOP, "paused")

    def resume(self, number: int, wait: bool = True, timeout_s: float = UP_TIMEOUT_S) -> None:
        """Let a paused node go on; `wait` until the others see it again."""
        self._signal(number, signal.SIGCONT, "running")
        if wait:
            self.wait_healthy(timeout_s, only_running=True)

    # ---- network

    def cut(self, one: int, other: int) -> None:
        """Cut the link between two nodes, both ways; needs a cluster brought up with `netns`."""
        with self._locked():
            now, _ = self._node(one)
            self._node(other)
            if one == other:
                raise ClusterError("a node has no link to itself")
            if not now.netns:
                raise ClusterError(f"cluster {self.name} has no links to cut: bring it up with --netns (as root)")
            pair = (min(one, other), max(one, other))
            network.cut(now.subnet, *pair)
            if pair not in now.cuts:
                state.save(self.folder, msgspec.structs.replace(now, cuts=(*now.cuts, pair)))

    def heal(self) -> None:
        """Join all links again; that the nodes see each other takes a little longer: `wait_healthy`."""
        with self._locked():
            now, _ = self._node(1)
            for one, other in now.cuts:
                network.heal(now.subnet, one, other)
            state.save(self.folder, msgspec.structs.replace(now, cuts=()))

    # ---- looking

    def status(self) -> list[NodeStatus]:
        """Every node as it is now; an empty list if there is no such cluster."""
        now = state.load(self.folder)
        return [node_status(node) for node in now.nodes] if now else []

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """The pairs of nodes whose links are cut."""
        now = state.load(self.folder)
        return now.cuts if now else ()

    @property
    def ca_file(self) -> Path:
        """What clients of a cluster with `tls` must trust."""
        return certificates.ca_of(self.folder)

    def contact_points(self) -> str:
        """The nodes' addresses with commas, as drivers want them."""
        return ",".join(node.address for node in self.status())

    def wait_healthy(
        self, timeout_s: float = UP_TIMEOUT_S, only_running: bool = False, progress: Progress = lambda nodes: None
    ) -> None:
        """Return once every node reaches every other, or raise with what the last one said.

        `only_running` asks the running nodes alone, and settles for less when some are down: each must then answer
        for itself.
        """
        now, _ = self._node(1)
        deadline = time.monotonic() + timeout_s
        for node in now.nodes:
            if only_running and process_state(node) != "running":
                continue
            whole = all(process_state(each) == "running" for each in now.nodes) and not now.cuts
            self._wait_one(now, node, whole, deadline)
            progress(1)

    def _wait_one(self, now: ClusterState, node: NodeState, whole: bool, deadline: float) -> None:
        last: Exception | None = None
        told_s = time.monotonic()
        while time.monotonic() < deadline:
            if process_state(node) == "down":
                raise ClusterError(f"node {node.config.number} ended by itself: see {node.config.folder}/output.log")
            try:
                if whole:
                    check_whole(node.config, now)
                else:
                    check_alone(node.config)
                return
            except (OSError, cql.CqlError) as failed:
                last = failed
            if NOT_TOLD in str(last) and time.monotonic() - told_s > TELL_AGAIN_S:
                told_s = time.monotonic()
                works(lambda: tell_again(now))
            time.sleep(POLL_S)
        raise ClusterError(f"node {node.config.number} is not ready in time: {last}; see {node.config.folder}")

    # ---- inside, called with the lock held

    def _state_or_none(self, keep: bool) -> ClusterState | None:
        try:
            return state.load(self.folder)
        except state.Unreadable:
            if keep:
                raise  # there is nothing to go on with
            return None

    def _new(self, shape: Shape, owner: ProcessId | None) -> ClusterState:
        if shape.netns:
            network.check_rights()
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ClusterError(f"{self.folder} is not empty and holds no cluster: choose another folder")

        def settle(subnet: int) -> None:
            state.save(self.folder, state.plan(self.name, self.folder, subnet, shape, owner))

        registry = clusters_folder() / "subnets.json"
        addresses.claim_subnet(registry, self.folder / STATE_FILE, shape.nodes, shape.netns, settle)
        return self._node(1)[0]

    def _start(self, now: ClusterState, number: int) -> ClusterState:
        node = now.nodes[number - 1]
        if process_state(node) != "down":
            return now
        if node.config.tls:
            certificates.make(self.folder, [each.config.address for each in now.nodes], jars.find_java())
        config.write_files(node.config)
        command = config.java_command(node.config, jars.find_java(), jars.fetch_jars())
        if now.netns:
            command = network.enter(now.subnet, number) + command
        slack_us = config.SLACK_US[node.config.jvm]
        process = processes.start(command, Path(node.config.folder) / "output.log", os.environ, slack_us)
        now = now.with_process(number, process)
        state.save(self.folder, now)
        return now

    def _signal(self, number: int, what: signal.Signals, wanted: str) -> None:
        with self._locked():
            _, node = self._node(number)
            if not node.process or not processes.send(node.process, what):
                raise ClusterError(f"node {number} is down")
            if not processes.wait_for_state(node.process, wanted, timeout_s=10):
                raise ClusterError(f"node {number} is not {wanted} after 10 s")

    def _node(self, number: int) -> tuple[ClusterState, NodeState]:
        now = state.load(self.folder)
        if now is None:
            raise ClusterError(f"there is no cluster {self.name}: `capellini cluster up --name {self.name}` makes one")
        node = now.node(number)
        if node is None:
            raise ClusterError(f"cluster {self.name} has nodes 1 to {len(now.nodes)}, not {number}")
        return now, node

    def _locked(self) -> AbstractContextManager[None]:
        return jars.locked(self._lock_file)

    @property
    def _lock_file(self) -> Path:
        return self.folder.parent / f"{self.folder.name}.lock"  # beside the folder, which comes and goes

    def _remove_files(self) -> None:
        """Remove what we made and nothing else: the folder may be one the user chose."""
        for number in range(1, addresses.MOST_NODES + 1):
            if (made := node_folder(self.folder, number)).exists():
                shutil.rmtree(made)
        if (made := certificates.folder_of(self.folder)).exists():
            shutil.rmtree(made)
        for name in (STATE_FILE, f"{STATE_FILE}.part"):
            (self.folder / name).unlink(missing_ok=True)
        if self.folder.exists() and not any(self.folder.iterdir()):
            self.folder.rmdir()
        self._lock_file.unlink(missing_ok=True)


def check_shape(now: ClusterState, asked: Shape) -> None:
    """Raises ClusterError when the cluster that is there is not the one that is asked for."""
    first = now.nodes[0].config
    there = {
        "nodes": len(now.nodes),
        "dcs": len({node.config.dc for node in now.nodes}),
        "netns": now.netns,
        "commitlog_sync": first.commitlog_sync,
        "tls": first.tls,
        "passwords": first.passwords,
    }
    for what, is_so in there.items():
        if is_so != (wanted := getattr(asked, what)):
            raise ClusterError(f"cluster {now.name} exists and has {what} {is_so}, not {wanted}: take it down first")


def clusters_folder() -> Path:
    """Where clusters live unless told otherwise."""
    return jars.cache_folder() / "clusters"


def storage_argument(folder: Path, number: int) -> str:
    """The argument by which a node of this folder is known among all processes."""
    return config.storage_argument(str(node_folder(folder, number)))


def remove_leftovers() -> list[str]:
    """Take down the clusters whose owner died without doing so; returns their names."""
    removed = []
    for folder in sorted(path for path in clusters_folder().glob("*") if path.is_dir()):
        try:
            now = state.load(folder)
        except state.Unreadable:
            continue  # whose it is cannot be known
        if now and now.owner and processes.state_of(now.owner) == "down":
            LocalCluster(now.name, folder).down()
            removed.append(now.name)
    return removed
