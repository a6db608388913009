"""What the calls of every kind of queue share: how much they take, and which generation of a queue they mean."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar, cast

from capellini.model.clock import Clock
from capellini.model.errors import CapelliniError, Invalid, NotFound, Unknown
from capellini.model.message import MAX_BATCH
from capellini.model.service import Problem
from capellini.queues.catalog import Catalog, QueueRecord
from capellini.queues.work.place import Gone

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741
GONE_TRIES: Final = 4  # generations that one call may meet while the queue is purged again and again


async def with_living(
    catalog: Catalog,
    clock: Clock,
    name: str,
    act: Callable[[QueueRecord], Awaitable[T]],
    forget: Callable[[QueueRecord], None],
) -> T:
    """Do it with the queue's living generation; if that is over meanwhile, with the next. What was written into a
    generation that is over may have been got before: then nothing that fails afterwards was surely not done."""
    record = await catalog.live(name)
    sent = False
    try:
        for _ in range(GONE_TRIES):
            try:
                result = await act(record)
                return _unsure(result) if sent else result
            except Gone as gone:
                sent = sent or gone.sent
                forget(record)
            before, record = record, await catalog.show(name)
            if record.generation == before.generation:
                await clock.sleep(0.05)
        raise NotFound(f"there is no queue {name}: it was deleted or purged meanwhile")
    except CapelliniError as error:
        if sent:
            raise _unknown(error) from error
        raise


def _unknown(error: CapelliniError) -> CapelliniError:
    return Unknown(f"it may have been put before the queue was deleted or purged: {error.says}")


def _unsure(result: T) -> T:
    """The same with problems that leave open whether it was done; what is wrong with an item itself stays so."""
    if not isinstance(result, list):
        return result
    return cast(T, [_unsure_of(item) if isinstance(item, Problem) else item for item in result])


def _unsure_of(problem: Problem) -> Problem:
    error = problem.raised()
    return problem if isinstance(error, Invalid) else Problem.of(_unknown(error))


def batch(what: str, count: int) -> None:
    if not 1 <= count <= MAX_BATCH:
        raise Invalid(f"a call takes 1 to {MAX_BATCH} {what}, not {count}")


def in_range(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise Invalid(f"{what} goes from {least:.15g} to {most:.15g}, not {value!r}")


def check_delay(delay_s: float, ttl_s: float) -> None:
    """A message that expires before it is offered would never be had. Raises Invalid."""
    if ttl_s and delay_s >= ttl_s:
        raise Invalid(f"delay_s {delay_s:g} is not below the ttl_s {ttl_s:g} of this queue: it would never be offered")


async def good_ones(
    items: Sequence[I],
    wrong: Callable[[I], str | Problem | None],
    act: Callable[[Sequence[I]], Awaitable[list[T | Problem]]],
) -> list[T | Problem]:
    """Act on those that nothing is wrong with; a problem for each of the others."""
    says = [wrong(item) for item in items]
    good = [item for item, problem in zip(items, says, strict=True) if problem is None]
    done = iter(await act(good) if good else ())
    return [
        next(done) if problem is None else Problem(Invalid.name, problem) if isinstance(problem, str) else problem
        for problem in says
    ]
