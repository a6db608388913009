"""A client learns which queues take plain calls only: one request in vain, and then none."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.unit.memory_service import MemoryService

from capellini.client.aio import AsyncClient
from capellini.client.lanes import PLAIN_FOR_S, Kinds
from capellini.client.patient import Patience, PatientService
from capellini.model.errors import WrongKind
from capellini.model.message import Delivery, NewMessage
from capellini.model.service import Done, Parcel, ParcelAck, Problem, Put, QueueInfo


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at_s = 1_000.0

    def now_s(self) -> float:
        return self.at_s

    def elapsed_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        self.at_s += seconds


class Counting(MemoryService):
    """Counts calls, and refuses the fast lane while `timed`."""

    def __init__(self) -> None:
        super().__init__()
        self.timed_kind = True
        self.calls: list[str] = []

    def _lane(self, call: str) -> None:
        self.calls.append(call)
        if self.timed_kind:
            raise WrongKind("queue q is a timed queue: this is for work queues")

    async def put_block(self, name: str, entries: bytes) -> list[tuple[int, int]]:
        self._lane("put_block")
        return await super().put_block(name, entries)

    async def take(self, name: str, count: int, wait_s: float = 0.0, visibility_s: float | None = None) -> list[Parcel]:
        self._lane("take")
        return await super().take(name, count, wait_s, visibility_s)

    async def ack_parcels(self, name: str, acks: Sequence[ParcelAck]) -> list[list[tuple[int, int]]]:
        self._lane("ack_parcels")
        return await super().ack_parcels(name, acks)

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        self.calls.append("put")
        return await super().put(name, messages)

    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]:
        self.calls.append("get")
        return await super().get(name, count, wait_s, visibility_s)

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        self.calls.append("ack")
        return await super().ack(name, receipts)


async def client_of(service: Counting, clock: Clock) -> AsyncClient[bytes]:
    await service.create("q")
    chance = random.Random(1)
    return AsyncClient(PatientService(service, Patience(), clock, chance), clock=clock, chance=chance)


async def lived(client: AsyncClient[bytes]) -> None:
    await client.put("q", b"x")
    (message,) = await client.get("q")
    assert (message.body, message.deliveries) == (b"x", 1)
    await message.ack()


async def test_a_timed_queue_costs_one_refused_request_and_then_none() -> None:
    service = Counting()
    client = await client_of(service, Clock())
    for _ in range(3):
        await lived(client)
    assert service.calls == ["put_block", "put", "get", "ack", "put", "get", "ack", "put", "get", "ack"]


async def test_after_a_while_the_fast_lane_is_tried_again() -> None:
    service, clock = Counting(), Clock()
    client = await client_of(service, clock)
    await lived(client)
    clock.at_s += PLAIN_FOR_S
    service.timed_kind = False
    service.calls.clear()
    await lived(client)
    assert service.calls == ["put_block", "take", "ack_parcels"]


async def test_what_is_put_with_a_due_needs_no_fast_lane_to_be_refused() -> None:
    service = Counting()
    client = await client_of(service, Clock())
    await client.put_many("q", [NewMessage(b"a"), NewMessage(b"b", key="k"), NewMessage(b"c", due=1.0)])
    assert service.calls == ["put", "put"]  # keyed puts may be repeated, others not: two requests


def test_what_a_queue_says_of_itself_is_learned() -> None:
    kinds = Kinds(Clock())
    timed = QueueInfo("q", "timed", 1, {}, 0.0)
    kinds.learn(timed)
    assert kinds.plain("q") and not kinds.plain("other")
    kinds.learn(QueueInfo("q", "work", 2, {}, 0.0))
    assert not kinds.plain("q")
