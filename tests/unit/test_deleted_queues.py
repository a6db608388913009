"""Nothing of a queue that was deleted or purged stays in a node's memory, however many there were."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from capellini.model.message import NewMessage
from capellini.node.node import Node
from capellini.node.settings import Settings

pytestmark = pytest.mark.slow

WAIT_S = 10.0
CLEARED_S = 60.0


async def test_what_deleted_and_purged_queues_held_is_let_go(tmp_path: Path) -> None:
    node = await Node.open(Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0"))
    try:
        async with asyncio.timeout(CLEARED_S):
            for kind in ("work", "timed"):
                for name in (f"{kind}-1", f"{kind}-2"):
                    await node.service.create(name, kind)
                    await node.service.put(name, [NewMessage(b"x" * 10_000)] * 5)
                    (message,) = await node.service.get(name, 1, WAIT_S)
                    await node.service.ack(name, [message.receipt])
                await node.service.delete(f"{kind}-1")
                await node.service.purge(f"{kind}-2")
            broker, keeper = node._maintenance._broker, node.kinds.timed.keeper
            while broker.room.used or ("timed-1", 1) in keeper._holders or ("timed-2", 1) in keeper._holders:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{broker.room.used} bytes stay, and shards of {list(keeper._holders)}") from None
    finally:
        await node.close()
