"""What a Python worker of Spark keeps of a cluster from one task to the next."""

from __future__ import annotations

import pytest
from tests.ways import usable

from capellini import connect
from capellini.pipeline.source.ways import Kept, way_to

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]


def test_a_cluster_stays_connected_unless_a_task_fails(cassandra_address: str, shared_keyspace: str) -> None:
    kept = Kept(3_600.0)
    at = f"cassandra://{cassandra_address}/{shared_keyspace}?replication=3"
    with connect(at) as client:
        client.create_queue("kept-ways", "log")
    with way_to(at, None, kept) as first:
        assert usable(first)
    with way_to(at, None, kept) as second:
        assert second is first and usable(second)
    with pytest.raises(ValueError, match="of the task"), way_to(at, None, kept):
        raise ValueError("of the task")
    assert not usable(first)
    with way_to(at, None, kept) as fourth:
        assert fourth is not first and usable(fourth)
    left = kept.take((at, None))
    assert left is fourth
    left.close()
