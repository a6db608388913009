"""What a node says of a timed queue as a whole: its dead letters, how often something is put."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from capellini.model.errors import Unavailable
from capellini.model.message import MAX_BATCH, NewMessage
from capellini.model.service import Problem, Put
from capellini.model.timed import Scheduled
from capellini.node.node import Node
from capellini.queues.timed.putting import Putting

LETTERS = MAX_BATCH + 200  # more than one look at messages shows
REFUSED = 300  # in the rate of the last minute they would be five a second


async def test_dead_letters_are_counted_beyond_what_one_look_shows(node: Node) -> None:
    service = node.service
    await service.create("letters")
    for kind in ("work", "timed"):
        await service.create(kind, kind, {"dead_letters": "letters"})
    assert (await service.statistics("timed")).dead == 0
    for count in (MAX_BATCH, LETTERS - MAX_BATCH):
        await service.put("letters", [NewMessage(b"x")] * count)
    for kind in ("work", "timed"):
        found = await service.statistics(kind)
        assert found.dead == LETTERS and "dead" in found.exact, kind


async def test_what_the_store_did_not_take_is_in_no_rate(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Putting.put

    async def takes_one(putting: Putting, messages: Sequence[Scheduled]) -> list[Put | Problem]:
        return [*await put(putting, messages[:1]), *[Problem(Unavailable.name, "the store is away")] * REFUSED]

    monkeypatch.setattr(Putting, "put", takes_one)
    await node.service.create("later", "timed")
    results = await node.service.put("later", [NewMessage(b"x")] * (1 + REFUSED))
    assert [isinstance(one, Put) for one in results] == [True] + [False] * REFUSED
    assert 0 < (await node.service.statistics("later")).puts_per_s <= 1
