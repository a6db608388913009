"""A network one can cut: each node in a namespace of its own, joined by a bridge.

    host ── bridge capX (198.18.X.254) ─┬─ veth ── namespace capX-1 (198.18.X.1)
                                        └─ veth ── namespace capX-2 (198.18.X.2)

A link is cut without a firewall: both ends get a fixed, wrong hardware address for each other, so that packets leave
and arrive nowhere, silently, as on a real cut; connections that were open starve as well. Healing removes these
entries. All of it needs root and the `ip` command.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from capellini.local.addresses import address_of, bridge_of
from capellini.local.errors import ClusterError

HOST_NUMBER = 254
NOWHERE = "02:00:00:00:00:fe"  # locally administered, and no interface of ours has it
NEEDS = "cutting links needs root and the `ip` command (iproute2): run as root, or go without --netns"


def check_rights() -> None:
    """Raise if namespaces cannot be made here."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise ClusterError(NEEDS)


def ip(*arguments: str) -> None:
    """Run `ip`, or raise with what it said."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise ClusterError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()} ({NEEDS})")


def namespace_of(subnet: int, number: int) -> str:
    """The name of a node's namespace."""
    return f"cap{subnet}-{number}"


def exists(*arguments: str) -> bool:
    """Whether `ip` shows such a thing."""
    return subprocess.run(["ip", *arguments], capture_output=True, timeout=30).returncode == 0


def build(subnet: int, nodes: int) -> None:
    """Make the bridge and the namespaces, after removing what a crashed run left of them."""
    check_rights()
    remove(subnet, nodes)
    bridge = bridge_of(subnet)
    ip("link", "add", bridge, "type", "bridge")
    ip("address", "add", f"{address_of(subnet, HOST_NUMBER, True)}/24", "dev", bridge)
    ip("link", "set", bridge, "up")
    for number in range(1, nodes + 1):
        space, outer = namespace_of(subnet, number), f"{bridge}v{number}"
        ip("netns", "add", space)
        ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", outer, "master", bridge, "up")
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", space, "address", "add", f"{address_of(subnet, number, True)}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")


def remove(subnet: int, nodes: int) -> None:
    """Remove the namespaces and the bridge, those that are there."""
    for number in range(1, nodes + 1):
        outer = f"{bridge_of(subnet)}v{number}"
        if exists("link", "show", outer):
            ip("link", "delete", outer)
        if exists("netns", "pids", namespace_of(subnet, number)):
            ip("netns", "delete", namespace_of(subnet, number))
    if exists("link", "show", bridge_of(subnet)):
        ip("link", "delete", bridge_of(subnet))


def enter(subnet: int, number: int) -> list[str]:
    """What to write before a command to run it in the node's namespace, as the same process."""
    return [shutil.which("ip") or "ip", "netns", "exec", namespace_of(subnet, number)]


def cut(subnet: int, one: int, other: int) -> None:
    """Cut the link between two nodes, both ways."""
    for here, there in ((one, other), (other, one)):
        space, far = namespace_of(subnet, here), address_of(subnet, there, True)
        ip("-n", space, "neighbour", "replace", far, "lladdr", NOWHERE, "nud", "permanent", "dev", "eth0")


def heal(subnet: int, one: int, other: int) -> None:
    """Join two nodes again."""
    for here, there in ((one, other), (other, one)):
        space, far = namespace_of(subnet, here), address_of(subnet, there, True)
        ip("-n", space, "neighbour", "delete", far, "dev", "eth0")
