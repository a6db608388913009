"""Who reaches whom in a local cluster."""

from __future__ import annotations

import time
from functools import partial

from capellini.local import state
from capellini.local.cluster import LocalCluster
from capellini.local.health import check_whole, works

NOTICE_TIMEOUT_S = 180.0  # a failure detector needs some ten seconds on a quiet machine; a question is given three


def reaches_all(cluster: LocalCluster) -> list[bool]:
    """For each node: does it, as coordinator, reach every other?"""
    now = state.load(cluster.folder)
    assert now is not None
    return [works(partial(check_whole, node.config, now)) for node in now.nodes]


def wait_until(cluster: LocalCluster, wanted: list[bool]) -> None:
    deadline = time.monotonic() + NOTICE_TIMEOUT_S
    while (seen := reaches_all(cluster)) != wanted:
        assert time.monotonic() < deadline, f"{seen} instead of {wanted}"
        time.sleep(0.5)
