"""A cluster whose links can be cut, for real: a network namespace per node."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.meshes import wait_until

from capellini.local import network, processes
from capellini.local.cluster import LocalCluster
from capellini.local.errors import ClusterError

pytestmark = [pytest.mark.cassandra, pytest.mark.slow, pytest.mark.long]  # a second cluster beside the shared one


@pytest.fixture
def cuttable() -> Iterator[LocalCluster]:
    try:
        network.check_rights()
    except ClusterError as missing:
        pytest.skip(str(missing))
    cluster = LocalCluster(f"cut-{os.getpid()}")
    try:
        cluster.up(nodes=3, dcs=2, netns=True, owner=processes.identify(os.getpid()))
        yield cluster
    finally:
        cluster.down()


def test_a_cut_link_separates_two_nodes_and_no_others(cuttable: LocalCluster) -> None:
    wait_until(cuttable, [True] * 3)
    cuttable.cut(1, 2)
    wait_until(cuttable, [False, False, True])
    cuttable.heal()
    wait_until(cuttable, [True] * 3)
