"""Work queues: what a message costs on Cassandra, whether that grows, and how fast the embedded node is beside others.

    work.cassandra.*    rounds and requests per message            (work_cassandra.py)
    work.simulated.*    eight nodes on one queue against one       (work_simulated.py)
    work.cost_*         cost in old and full queues                (work_cost.py)
    work.rocks.*        beside PostgreSQL, Redis and beanstalkd    (work_peers.py)

Only the parts that the wanted figures need are run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from capellini.bench.figures import Figure
from capellini.bench.parts import in_turn

PARTS: Final = {
    "capellini.bench.work_cassandra": ("work.cassandra.",),
    "capellini.bench.work_simulated": ("work.simulated.",),
    "capellini.bench.work_cost": ("work.cost_",),
    "capellini.bench.work_peers": ("work.rocks.",),
}


def run(quick: bool, only: str | None) -> AsyncIterator[Figure]:
    """All figures of work queues that `only` picks."""
    return in_turn("work", PARTS, quick, only)
