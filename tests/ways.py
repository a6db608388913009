"""Whether the way of a task can still be read by."""

from __future__ import annotations

from capellini.model.errors import Unavailable
from capellini.pipeline.source.ways import Way
from capellini.queues.ending import REALM
from capellini.store.interface import Slice
from capellini.store.schema import QUEUES


def usable(way: Way) -> bool:
    async def read() -> bool:
        return (await way.reach.rows.read(Slice(QUEUES, REALM, limit=1))) is not None

    reading = read()
    try:
        return way.begin(reading).result()
    except (RuntimeError, Unavailable):  # its thread, loop or store has ended
        reading.close()
        return False
