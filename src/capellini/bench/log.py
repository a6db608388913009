"""Log queues: rates, latency and bytes on the embedded store beside PostgreSQL; what a message asks Cassandra for.

    log.rocks.put_per_s, get_ack_per_s, disk_bytes_per_byte   apart, through streams        (log_rates.py)
    log.rocks.life_vs_postgres, second_group_cost             all together                  (log_lives.py)
    log.rocks.latency_p99_*, old_position_cost                                              (log_reading.py)
    log.cassandra.*                                           counted, and beside acsylla   (log_cassandra.py)
    log.journal_cost                                          work queues with and without  (log_journal.py)

Only the parts that the wanted figures need are run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from capellini.bench.figures import Figure
from capellini.bench.parts import in_turn

PARTS: Final = {
    "capellini.bench.log_rates": ("log.rocks.put_", "log.rocks.get_", "log.rocks.disk_"),
    "capellini.bench.log_lives": ("log.rocks.life_", "log.rocks.second_"),
    "capellini.bench.log_reading": ("log.rocks.latency_", "log.rocks.old_"),
    "capellini.bench.log_cassandra": ("log.cassandra.",),
    "capellini.bench.log_journal": ("log.journal_",),
}


def run(quick: bool, only: str | None) -> AsyncIterator[Figure]:
    """All figures of log queues that `only` picks."""
    return in_turn("log", PARTS, quick, only)
