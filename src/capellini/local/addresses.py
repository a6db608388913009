"""Addresses for clusters that live side by side: each gets a subnet number X of its own, 1 to 254.

    loopback     node N listens on 127.0.X.N
    namespaces   node N listens on 198.18.X.N, on a bridge of its own (198.18/15 is set aside for tests of networks)
    JMX          127.0.0.1, port 20000 + 10 X + N: below the range the kernel hands out by itself

Who has which number is written in one small file under a lock, because between choosing a number and listening on it
lie seconds. A number is free again when the state file it was given to is gone.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from capellini.local.config import CQL_PORT, STORAGE_PORT
from capellini.local.errors import ClusterError
from capellini.local.jars import locked, replace_file

MOST_NODES = 9  # one digit of the JMX port
SUBNETS = range(1, 255)
JMX_BASE = 20_000


def address_of(subnet: int, number: int, netns: bool) -> str:
    """The address of node `number` of the cluster with this subnet."""
    return f"198.18.{subnet}.{number}" if netns else f"127.0.{subnet}.{number}"


def bridge_of(subnet: int) -> str:
    """The name of the cluster's bridge, if it has one."""
    return f"cap{subnet}"


def jmx_port_of(subnet: int, number: int) -> int:
    """The node's port for JMX, on 127.0.0.1."""
    return JMX_BASE + 10 * subnet + number


def is_free(address: str, port: int) -> bool:
    """Whether one could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def subnet_is_free(subnet: int, nodes: int, netns: bool) -> bool:
    """Whether all ports of such a cluster are free; in namespaces of their own only the bridge can be taken."""
    if netns:
        return not Path(f"/sys/class/net/{bridge_of(subnet)}").exists()
    numbers = range(1, nodes + 1)
    return all(
        is_free(address_of(subnet, number, netns), CQL_PORT)
        and is_free(address_of(subnet, number, netns), STORAGE_PORT)
        and is_free("127.0.0.1", jmx_port_of(subnet, number))
        for number in numbers
    )


def claim_subnet(registry: Path, state_file: Path, nodes: int, netns: bool, settle: Callable[[int], None]) -> int:
    """A subnet number for the cluster whose state is kept in `state_file`.

    `settle` gets the number and must write that file: it is called under the registry's lock, so that a claim stands
    from the moment anyone else may look. A claim whose file is gone is free again.
    """
    with locked(registry.with_suffix(".lock")):
        living = {number: kept for number, kept in read_claims(registry).items() if Path(kept).exists()}
        for subnet in SUBNETS:
            if subnet not in living and subnet_is_free(subnet, nodes, netns):
                settle(subnet)
                write_claims(registry, {**living, subnet: str(state_file)})
                return subnet
    raise ClusterError("no free subnet is left: take a cluster down first")


def read_claims(registry: Path) -> dict[int, str]:
    """Subnet number to the state file of the cluster that has it."""
    if not registry.exists():
        return {}
    try:
        return msgspec.json.decode(registry.read_bytes(), type=dict[int, str])
    except msgspec.MsgspecError as error:
        says = f"{registry} cannot be read ({error}): take your clusters down (`capellini cluster down`) and remove it"
        raise ClusterError(says) from None


def write_claims(registry: Path, claims: dict[int, str]) -> None:
    """Replace the registry in one step."""
    replace_file(registry, msgspec.json.format(msgspec.json.encode(claims)))
