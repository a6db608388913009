"""A process that counts: sends updates that can be told apart, and prints what became of each.

python -m tests.cassandra.counter_child ADDRESS NAME CALLS
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

from capellini.counters.service import Counters
from capellini.counters.states.registry import Registry
from capellini.model.address import CassandraAddress, parse
from capellini.model.clock import RealClock
from capellini.model.errors import Unavailable, Unknown
from capellini.proof.counting import Ledger
from capellini.store.opening import open_store

IDS = 5  # in one call
TASKS = 4


async def main(address: str, name: str, calls: int) -> None:
    place = parse(address)
    assert isinstance(place, CassandraAddress)
    store = await open_store(place)
    counters = Counters(store, RealClock(), random.Random(), registry=Registry(more=[Ledger]))
    fates: dict[str, list[str]] = {"confirmed": [], "unknown": [], "failed": []}
    left = iter(range(calls))

    async def task() -> None:
        for call in left:
            ids = [f"{name}.{call}.{at}" for at in range(IDS)]
            try:
                await counters.update("ledger", ids, Ledger.kind)
                await counters.add("total", IDS)
            except Unknown:
                fates["unknown"] += ids
            except Unavailable:
                fates["failed"] += ids
            else:
                fates["confirmed"] += ids
            print("call", flush=True)

    await asyncio.gather(*(task() for _ in range(TASKS)))
    print(json.dumps(fates), flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
