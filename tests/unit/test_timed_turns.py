"""A holder on a folder reads what is due in small parts, and others are served between them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from capellini.model.message import NewMessage
from capellini.model.service import Problem
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.timed import holder
from capellini.queues.timed.holder import TURN_ROWS
from capellini.queues.timed.rows import Reach, read_between

DEADLINE_S = 30.0
MESSAGES = 7 * TURN_ROWS


async def test_much_that_is_due_at_once_is_read_in_parts_between_which_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    rows: list[int] = []  # of each read that found some
    served: list[int] = []  # reads after which somebody else had a turn
    missed: list[int] = []

    async def read(*args: Any) -> Reach:
        if rows and served[-1:] != [len(rows)]:
            missed.append(len(rows))
        found = await read_between(*args)
        if found.rows:
            rows.append(len(found.rows))
            loop.call_soon(served.append, len(rows))
        return found

    monkeypatch.setattr(holder, "read_between", read)
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}"))
    try:
        await node.service.create("later", "timed", {"shards": 1})
        due_s = time.time() + 0.5
        results = await node.service.put("later", [NewMessage(b"%d" % at, due=due_s) for at in range(MESSAGES)])
        assert not any(isinstance(each, Problem) for each in results)
        bodies: set[bytes] = set()
        async with asyncio.timeout(DEADLINE_S):
            while len(bodies) < MESSAGES:
                bodies |= {each.body for each in await node.service.get("later", 500, 1.0)}
    finally:
        await node.close()
    assert sum(rows) == MESSAGES and max(rows) <= TURN_ROWS
    assert not missed
