"""Streams: the fastest way in and out of a log queue. One task puts, another gets and acks in batches, meanwhile.

    python examples/streams.py [ADDRESS] [COUNT]

`send_many` does not wait for the store: only while too much is under way. What it returns says when the messages are
durable, in order. A node that restarts, or leaves, is followed by both ends: nothing is lost, and nothing is put twice.
"""

from __future__ import annotations

import asyncio
import sys

import capellini

AT_A_TIME = 1_000


async def put(client: capellini.AsyncClient[bytes], count: int) -> None:
    async with client.stream_put("readings") as producer:
        for first in range(0, count, AT_A_TIME):
            some = range(first, min(first + AT_A_TIME, count))
            await producer.send_many([b"reading %d" % number for number in some])
    # leaving the block has waited until all of it is durable


async def get(client: capellini.AsyncClient[bytes], count: int) -> int:
    """How many different ones came. A consumer that dies before its ack leaves them to another one: they come again."""
    seen: set[bytes] = set()
    async with client.stream("readings", group="graphs") as consumer:
        async for batch in consumer.batches():
            seen.update(batch.bodies)
            await batch.ack()
            if len(seen) >= count:
                break
    return len(seen)


async def main(address: str = "rocks:data", count: str = "10000") -> None:
    async with capellini.connect_async(address) as client:
        await client.create_queue("readings", "log")
        await client.groups.create("readings", "graphs", start="latest")
        _, came = await asyncio.gather(put(client, int(count)), get(client, int(count)))
        print(f"{came} readings came")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
