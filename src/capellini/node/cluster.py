"""What a node asks a Cassandra cluster before it uses it: is it the one that is meant, and how late may writes come?

Cassandra keeps writes for a replica that is down, and brings them when it is back (hints), for as long as
`max_hint_window` says. Counters must not be collected before that (counters/times.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from capellini.model.address import CassandraAddress
from capellini.model.clock import Clock
from capellini.model.errors import CannotOpen, CapelliniError
from capellini.store.interface import Level

HINT_WINDOW_S: Final = 10_800.0  # Cassandra's own default, where it does not say
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)")


class Cluster(msgspec.Struct, frozen=True):
    name: str
    hint_window_s: float


def hint_window_of(settings: Mapping[str, str]) -> float:
    """From the settings as Cassandra shows them: `3h` under the name of today, milliseconds under the older one."""
    found = _DURATION.fullmatch(settings.get("max_hint_window", "").strip())
    if found is not None:
        return int(found[1]) * _UNITS_S[found[2]]
    older = settings.get("max_hint_window_in_ms", "")
    return int(older) / 1000 if older.isdigit() else HINT_WINDOW_S


async def ask(address: CassandraAddress, clock: Clock) -> Cluster:
    """Nothing is made or changed. Raises CannotOpen or Unavailable."""
    from capellini.store.cassandra_session import Session

    session = await Session.connect(address, clock)
    try:
        name = (await session.read("SELECT cluster_name FROM system.local", [], Level.ONE))[0][0]
        try:
            told = await session.each("SELECT name, value FROM system_views.settings")
        except CapelliniError:  # a version, or a role, that does not show them
            told = {}
    finally:
        await session.close()
    return Cluster(str(name), longest(told.values()))


def longest(told: Iterable[Iterable[Sequence[Any]]]) -> float:
    """Each server keeps hints for as long as its own settings say: the one that may bring a write last counts."""
    windows = (hint_window_of({str(name): str(value) for name, value in rows}) for rows in told)
    return max(windows, default=HINT_WINDOW_S)


def check_name(cluster: Cluster, wanted: str) -> None:
    """Raises CannotOpen when this is another cluster than the one meant: before anything is created in it."""
    if wanted and cluster.name != wanted:
        raise CannotOpen(f"the Cassandra cluster is called {cluster.name!r}, not {wanted!r}: see cluster_name")
