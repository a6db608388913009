"""Patience by its table: what is repeated, after what, how long, and what is said when an answer was lost."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from capellini.client.patient import RULES, Patience, PatientService, Rule
from capellini.client.relay import Relay
from capellini.model.errors import (
    CapelliniError,
    Conflict,
    Full,
    Invalid,
    NotFound,
    Overloaded,
    Paused,
    Stale,
    Unavailable,
    Unknown,
)
from capellini.model.message import NewMessage
from capellini.model.service import Done, NackItem, ParcelAck, Problem, Put, Service
from capellini.model.timed import MoveItem

R = TypeVar("R")
ACK = ParcelAck(1, 100, 10, 1, b"12345678", [(0, 3)])
STALE = Problem.of(Stale("stale"))
AWAY = Problem.of(Unavailable("away"))
LOST = Problem.of(Unknown("lost"))


class Clock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.pauses: list[float] = []

    def now_s(self) -> float:
        return self.time_s

    def elapsed_s(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time_s += seconds


class Scripted(Relay):
    """Answers each call with the next line of its script; an error is raised."""

    def __init__(self, *script: object) -> None:
        self.script = list(script)
        self.asked: list[Any] = []

    def _next(self, asked: object) -> Any:
        self.asked.append(asked)
        answer = self.script.pop(0)
        if isinstance(answer, CapelliniError):
            raise answer
        return answer

    async def call(self, operation: str, do: Callable[[Service], Awaitable[R]]) -> R:
        return self._next(operation)  # type: ignore[no-any-return]

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        return self._next([message.body for message in messages])  # type: ignore[no-any-return]

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        return self._next(list(receipts))  # type: ignore[no-any-return]

    async def close(self) -> None:
        self.asked.append("close")


def patient(*script: object, **settings: Any) -> tuple[PatientService, Scripted, Clock]:
    behind, clock = Scripted(*script), Clock()
    return PatientService(behind, Patience(**settings), clock, random.Random(1)), behind, clock


def test_every_call_of_the_service_has_a_rule() -> None:
    calls = {name for name, _ in inspect.getmembers(Service, inspect.iscoroutinefunction)} - {"close"}
    assert calls | {"put_keyed"} == set(RULES)


@pytest.mark.parametrize("operation", ["show", "statistics", "delete", "purge"])
@pytest.mark.parametrize("error", [Unavailable("x"), Overloaded("x"), Full("x")])
async def test_what_surely_changed_nothing_is_always_repeated(operation: str, error: CapelliniError) -> None:
    service, behind, clock = patient(error, error, "done")
    assert await getattr(service, operation)("jobs") in ("done", None)
    assert behind.asked == [operation] * 3 and len(clock.pauses) == 2


@pytest.mark.parametrize("operation", sorted(name for name, rule in RULES.items() if rule is Rule.SURELY))
async def test_a_lost_answer_of_what_must_not_happen_twice_is_raised(operation: str) -> None:
    arguments = {"put": (["jobs", [NewMessage(b"a")]]), "put_block": ["jobs", b""]}.get(operation, ["jobs"])
    service, behind, _ = patient(Unknown("lost"))
    with pytest.raises(Unknown):
        await getattr(service, operation)(*arguments)
    assert len(behind.asked) == 1


@pytest.mark.parametrize("operation", ["show", "get", "peek", "dead", "pointers", "create"])
async def test_a_lost_answer_of_what_may_happen_twice_is_repeated(operation: str) -> None:
    service, behind, _ = patient(Unknown("lost"), "done")
    assert await getattr(service, operation)("jobs") == "done"
    assert behind.asked == [operation] * 2


@pytest.mark.parametrize("error", [Invalid("x"), NotFound("x"), Stale("x"), Paused("x")])
async def test_what_repeating_cannot_mend_is_raised_at_once(error: CapelliniError) -> None:
    service, behind, _ = patient(error)
    with pytest.raises(type(error)):
        await service.show("jobs")
    assert len(behind.asked) == 1


async def test_patience_ends() -> None:
    service, behind, clock = patient(*[Unavailable("away", retry_after_s=0.0)] * 1_000, total_s=10.0)
    with pytest.raises(Unavailable, match="away"):
        await service.show("jobs")
    assert 8.0 < clock.time_s <= 10.0 and 5 < len(behind.asked) < 30


async def test_without_patience_nothing_is_repeated() -> None:
    service, behind, _ = patient(Unavailable("away", retry_after_s=0.0), total_s=0.0)
    with pytest.raises(Unavailable):
        await service.show("jobs")
    assert len(behind.asked) == 1


async def test_pauses_grow_are_jittered_and_honour_retry_after() -> None:
    quick = [Unavailable("away", retry_after_s=0.0)] * 7
    service, _, clock = patient(*quick, Unavailable("away", retry_after_s=7.0), "done")
    assert await service.show("jobs") == "done"  # type: ignore[comparison-overlap]
    for attempt, pause_s in enumerate(clock.pauses[:7]):
        longest = min(2.0, 0.05 * 2**attempt)
        assert longest / 2 <= pause_s <= longest
    assert clock.pauses[7] == 7.0


async def test_keyed_puts_are_repeated_after_a_lost_answer_others_only_when_told() -> None:
    keyed, plain = [NewMessage(b"a", key="k")], [NewMessage(b"a")]
    service, behind, _ = patient(Unknown("lost"), [Put("1", duplicate=True)])
    assert await service.put("jobs", keyed) == [Put("1", duplicate=True)]
    service, behind, _ = patient(Unknown("lost"), [Put("1")])
    with pytest.raises(Unknown):
        await service.put("jobs", plain)
    assert len(behind.asked) == 1
    service, behind, _ = patient(Unknown("lost"), [Put("1")], retry_unknown_puts=True)
    assert await service.put("jobs", plain) == [Put("1")]


async def test_only_the_items_that_surely_failed_are_put_again() -> None:
    messages = [NewMessage(body) for body in (b"good", b"away", b"lost", b"bad")]
    bad = Problem.of(Invalid("bad"))
    service, behind, _ = patient([Put("1"), AWAY, LOST, bad], [Put("2")])
    assert await service.put("jobs", messages) == [Put("1"), Put("2"), LOST, bad]
    assert behind.asked == [[b"good", b"away", b"lost", b"bad"], [b"away"]]


async def test_items_keep_what_is_known_when_patience_ends() -> None:
    service, _, _ = patient([Put("1"), AWAY], Unavailable("all away"), total_s=1.5)
    one, two = await service.put("jobs", [NewMessage(b"a"), NewMessage(b"b")])
    assert one == Put("1") and isinstance(two, Problem) and two.error == "unavailable"


async def test_an_ack_that_is_stale_at_first_sight_is_stale() -> None:
    service, _, _ = patient([STALE, Done()])
    assert await service.ack("jobs", ["a", "b"]) == [STALE, Done()]


async def test_an_ack_that_is_stale_after_a_lost_answer_is_unknown() -> None:
    service, behind, _ = patient(Unknown("lost"), [STALE, Done()])
    first, second = await service.ack("jobs", ["a", "b"])
    assert isinstance(first, Problem) and first.error == "unknown" and "may have been done" in first.says
    assert second == Done()
    assert behind.asked == [["a", "b"], ["a", "b"]]


async def test_an_ack_that_is_stale_after_it_was_surely_not_done_is_stale() -> None:
    service, _, _ = patient(Unavailable("away"), [STALE])
    assert await service.ack("jobs", ["a"]) == [STALE]


async def test_a_lost_answer_followed_by_errors_stays_unknown() -> None:
    service, _, _ = patient(Unknown("lost"), *[Unavailable("away")] * 100, total_s=5.0)
    with pytest.raises(Unknown, match="an earlier attempt may have been done"):
        await service.ack("jobs", ["a"])
    service, _, _ = patient([LOST], [AWAY], [AWAY], NotFound("gone"))
    with pytest.raises(Unknown):
        await service.ack("jobs", ["a"])


async def test_a_keyed_put_whose_answer_was_lost_is_not_told_as_surely_undone() -> None:
    keyed = [NewMessage(b"a", key="k")]
    service, _, _ = patient(Unknown("lost"), *[Unavailable("away")] * 100, total_s=5.0)
    with pytest.raises(Unknown, match="an earlier attempt may have been done"):
        await service.put("jobs", keyed)
    service, _, _ = patient([LOST], *[[AWAY]] * 100, total_s=5.0)
    with pytest.raises(Unknown):
        await service.put("jobs", keyed)
    service, _, _ = patient(Unknown("lost"), Paused("puts are paused"))
    with pytest.raises(Unknown, match="puts are paused"):
        await service.put("jobs", keyed)
    service, _, _ = patient(Unknown("lost"), *[Unavailable("away")] * 100, total_s=5.0)
    with pytest.raises(Unknown):
        await service.create("jobs")


async def test_what_a_repetition_learned_is_told_as_it_is() -> None:
    service, _, _ = patient(Unknown("lost"), Conflict("exists with other options"))
    with pytest.raises(Conflict):
        await service.create("jobs")
    service, _, _ = patient(Unknown("lost"), *[Unavailable("away")] * 100, total_s=5.0)
    with pytest.raises(Unavailable):
        await service.show("jobs")


async def test_nacks_follow_the_rule_of_acks() -> None:
    class Nacks(Scripted):
        async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
            return self._next([item.receipt for item in items])  # type: ignore[no-any-return]

    service = PatientService(Nacks(Unknown("lost"), [STALE]), Patience(), Clock(), random.Random(1))
    (result,) = await service.nack("jobs", [NackItem("a")])
    assert isinstance(result, Problem) and result.error == "unknown"


async def test_a_message_that_is_gone_after_a_lost_answer_may_have_been_moved() -> None:
    gone = Problem(NotFound.name, "no such message")
    service, _, _ = patient([gone])
    assert await service.move("later", [MoveItem("a", 1)]) == [gone]
    service, _, _ = patient(Unknown("lost"), [gone])
    (result,) = await service.move("later", [MoveItem("a", 1)])
    assert isinstance(result, Problem) and result.error == "unknown" and "may have been done" in result.says


class Parcels(Scripted):
    async def ack_parcels(self, name: str, acks: Sequence[ParcelAck]) -> list[list[tuple[int, int]]]:
        return self._next("ack_parcels")  # type: ignore[no-any-return]


async def test_parcels_missing_after_a_lost_answer_are_in_doubt() -> None:
    def service(*script: object) -> PatientService:
        return PatientService(Parcels(*script), Patience(), Clock(), random.Random(1))

    assert await service([[(0, 2)]]).settle_acks("jobs", [ACK]) == ([[(0, 2)]], False)
    assert await service(Unavailable("x"), [[(0, 2)]]).settle_acks("jobs", [ACK]) == ([[(0, 2)]], False)
    assert await service(Unknown("x"), [[(0, 2)]]).settle_acks("jobs", [ACK]) == ([[(0, 2)]], True)
    with pytest.raises(Unknown, match="may have been acked"):
        await service(Unknown("x"), [[(0, 2)]]).ack_parcels("jobs", [ACK])
    assert await service(Unknown("x"), [[(0, 3)]]).ack_parcels("jobs", [ACK]) == [[(0, 3)]]


async def test_a_closed_client_has_no_patience() -> None:
    service, behind, _ = patient(Unavailable("closed"))
    await service.close()
    with pytest.raises(Unavailable):
        await service.show("jobs")
    assert behind.asked == ["close", "show"]
