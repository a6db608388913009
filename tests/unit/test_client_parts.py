"""Calls that go in parts: what earlier parts did is told also when a later one fails."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.unit.memory_log import with_log
from tests.unit.memory_service import MemoryService

from capellini.client.aio import AsyncClient
from capellini.client.parts import LETTERS
from capellini.client.patient import Patience, PatientService
from capellini.model.clock import RealClock
from capellini.model.errors import CapelliniError, NotFound, Unavailable, Unknown
from capellini.model.message import MAX_BATCH
from capellini.model.service import Done, ExtendItem, NackItem, Problem

AWAY = Unavailable("the node is away", retry_after_s=7.0)
Redrive = Callable[[AsyncClient[bytes]], Awaitable[int]]


class Failing(MemoryService):
    """Does so many parts, and then fails."""

    def __init__(self, does: int, error: CapelliniError) -> None:
        super().__init__()
        self.does, self.error = does, error
        self.parts: list[int] = []

    def _part(self, size: int) -> int:
        self.parts.append(size)
        if len(self.parts) > self.does:
            raise self.error
        return size

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        return [Done()] * self._part(len(items))

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        return [Done()] * self._part(len(items))

    async def redrive(self, name: str, count: int | None = None, ids: Sequence[str] | None = None) -> int:
        return self._part(len(ids) if ids is not None else count or 0)


def client_of(service: MemoryService) -> AsyncClient[bytes]:
    return AsyncClient(PatientService(service, Patience(total_s=0.0), RealClock(), random.Random(1)))


@pytest.mark.parametrize("call", ["nack_many", "extend_many"])
async def test_what_earlier_parts_did_is_told_when_a_later_one_fails(call: str) -> None:
    service = Failing(1, AWAY)
    results = await getattr(client_of(service), call)("jobs", ["r"] * (2 * MAX_BATCH + 5), 1.0)
    assert results == [Done()] * MAX_BATCH + [Problem.of(AWAY)] * (MAX_BATCH + 5)
    assert service.parts == [MAX_BATCH, MAX_BATCH]  # nobody waits for the rest of them, too


async def test_an_error_of_the_first_part_is_raised() -> None:
    with pytest.raises(Unavailable, match="the node is away"):
        await client_of(Failing(0, AWAY)).nack_many("jobs", ["r"] * (2 * MAX_BATCH))


async def merged(client: AsyncClient[bytes]) -> int:
    """As dead letters of a group: the same failing service answers."""
    service = client._service.behind
    assert isinstance(service, Failing)
    log = await with_log(service)
    log.merge_dead = lambda queue, group, count=None: service.redrive(queue, count)  # type: ignore[method-assign]
    return await client.groups.merge_dead("events", "readers")


WAYS: list[Redrive] = [
    lambda client: client.redrive("jobs"),
    lambda client: client.redrive("jobs", 1_000),
    lambda client: client.redrive("jobs", ids=["1"] * 1_000),
    merged,
]


@pytest.mark.parametrize("redrive", WAYS)
@pytest.mark.parametrize("error", [AWAY, Unknown("the answer was lost"), NotFound("there is no queue 'jobs'")])
async def test_an_error_says_how_many_letters_were_moved_before_it(redrive: Redrive, error: CapelliniError) -> None:
    with pytest.raises(type(error)) as raised:
        await redrive(client_of(Failing(2, error)))
    assert raised.value.says == f"{error.says}; {2 * LETTERS} were moved before that, and stay moved"
    assert raised.value.retry_after_s == error.retry_after_s


@pytest.mark.parametrize("redrive", WAYS)
async def test_an_error_before_anything_was_moved_is_as_it_was(redrive: Redrive) -> None:
    with pytest.raises(Unavailable) as raised:
        await redrive(client_of(Failing(0, AWAY)))
    assert raised.value.says == AWAY.says
