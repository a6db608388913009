"""What a producer has under way: bounded, and yet nothing waits in the client for a node that is slow to confirm."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from tests.unit.raw_http import until

from capellini.client.chunking import pieces_of
from capellini.client.patient import PatientService
from capellini.client.producing import FLYING_CHUNKS, FLYING_MOST, Sending
from capellini.client.streams import PutLane
from capellini.model.chunks import head_of
from capellini.model.clock import RealClock
from capellini.model.log import Appended
from capellini.model.service import Service


class Silent(PutLane):
    """Confirms when it is told to."""

    open = True

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []  # messages of each chunk
        self.answers: list[asyncio.Future[Appended]] = []

    def append(self, chunk: bytes) -> asyncio.Future[Appended]:
        self.counts.append(head_of(chunk).count)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def confirm(self) -> None:
        first = 0
        for count, answer in zip(self.counts, self.answers, strict=True):
            if not answer.done():
                answer.set_result(Appended("x", first, count))
            first += count

    async def leave(self) -> None:
        self.is_over()


class Direct:
    """Asks at once, and only once."""

    async def call(self, what: str, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        return await ask(None)


async def opened() -> tuple[Sending, Silent]:
    lane = Silent()

    async def open_lane(behind: Service, elsewhere: Sequence[str]) -> PutLane:
        return lane

    sending = Sending(cast(PatientService, Direct()), open_lane, RealClock(), random.Random(0))
    await sending.open()
    return sending, lane


async def put(sending: Sending, messages: int) -> None:
    """Each in a turn of its own, so that it would be a chunk of its own."""
    for _ in range(messages):
        await sending.take(pieces_of([b"x"], None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_what_waits_while_confirmations_are_slow_goes_together_before_they_come() -> None:
    sending, lane = await opened()
    await put(sending, FLYING_CHUNKS + 4)
    await until(lambda: sum(lane.counts) == FLYING_CHUNKS + 4)
    assert lane.counts[:FLYING_CHUNKS] == [1] * FLYING_CHUNKS
    assert not any(answer.done() for answer in lane.answers)
    lane.confirm()
    await sending.close()


async def test_there_is_an_end_to_what_is_under_way() -> None:
    sending, lane = await opened()
    for _ in range(FLYING_MOST):
        await put(sending, 1)
        await until(lambda: not sending._waiting)
    await put(sending, 3)
    assert lane.counts == [1] * FLYING_MOST
    sending._one_more()
    assert len(lane.counts) == FLYING_MOST
    lane.confirm()
    await until(lambda: len(lane.counts) == FLYING_MOST + 1)
    assert lane.counts[-1] == 3
    lane.confirm()
    await sending.close()
