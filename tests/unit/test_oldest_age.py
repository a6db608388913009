"""How old the oldest message is that nobody has finished: counted from its put, or from its due if that is later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.test_work_repair import Ahead

from capellini.model.message import Delivery, NewMessage
from capellini.node.node import Node
from capellini.node.settings import Settings

PASSES_S = 500.0
SLACK_S = 60.0  # of real time, that the test itself may take
DEADLINE_S = 30.0


@pytest.fixture
def clock() -> Ahead:
    return Ahead()


@pytest.fixture
async def node(tmp_path: Path, clock: Ahead) -> AsyncIterator[Node]:
    opened = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0"), clock=clock)
    yield opened
    await opened.close()


async def got(node: Node) -> Delivery:
    async with asyncio.timeout(DEADLINE_S):
        while not (found := await node.service.get("q", 1, 5.0, 3_600.0)):
            continue
    return found[0]


async def age_s(node: Node) -> float | None:
    async with asyncio.timeout(DEADLINE_S):
        while "oldest_age_s" not in (found := await node.service.statistics("q")).exact:
            await asyncio.sleep(0.05)  # a shard is just being taken
    return found.oldest_age_s


@pytest.mark.parametrize("kind", ["work", "timed", "log"])
async def test_the_oldest_is_the_first_that_is_not_acked(node: Node, clock: Ahead, kind: str) -> None:
    await node.service.create("q", kind)
    await node.service.put("q", [NewMessage(b"first")])
    first = await got(node)
    clock.passed_s += PASSES_S
    await node.service.put("q", [NewMessage(b"second")])
    second = await got(node)
    clock.passed_s += PASSES_S
    age = await age_s(node)
    assert age is not None and 2 * PASSES_S <= age < 2 * PASSES_S + SLACK_S
    await node.service.ack("q", [first.receipt])
    age = await age_s(node)
    assert age is not None and PASSES_S <= age < PASSES_S + SLACK_S
    await node.service.ack("q", [second.receipt])
    assert await age_s(node) is None


async def test_what_is_due_later_is_not_old_before(node: Node, clock: Ahead) -> None:
    await node.service.create("q", "timed")
    await node.service.put("q", [NewMessage(b"later", delay_s=PASSES_S)])
    clock.passed_s += PASSES_S / 2
    assert await age_s(node) == 0
    clock.passed_s += PASSES_S
    age = await age_s(node)
    assert age is not None and PASSES_S / 2 <= age < PASSES_S / 2 + SLACK_S
