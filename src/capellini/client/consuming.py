"""The consume loop: fetch as many as there are free hands, keep them hidden while they are worked on, ack or give back.

    take ──▶ handler runs ──┬─ returns ──▶ ack
                 ▲          └─ raises ───▶ nack, with the delay that the queue's options say, if they say one;
         heartbeats extend                 else after 0.5 s doubled with each delivery up to 60 s, shortened at random

Nothing is fetched ahead of a free hand, so that no message waits hidden in this process while another process is
idle. A node that is away, or a queue whose gets are paused, is waited for; an error that waiting cannot mend (no
such queue, this client is closed) ends the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from capellini.client.messages import Held
from capellini.client.reaching import Closed
from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, Invalid, Paused, Stale, StoreError
from capellini.model.log import split_name
from capellini.model.message import MAX_BATCH
from capellini.model.service import Done, Problem

if TYPE_CHECKING:
    from capellini.client.aio import AsyncClient

H = TypeVar("H", bound=Held[Any])
R = TypeVar("R")
log = logging.getLogger("capellini.client")

POLL_S: Final = 20.0  # of one long poll: below the idle limits of the usual proxies
BEATS: Final = 3  # heartbeats in one visibility: two may be lost
NACK_FIRST_S: Final = 0.5
NACK_MOST_S: Final = 60.0
GIVE_BACK_S: Final = 5.0  # for messages of handlers that were cancelled; later they come back by themselves
ON_ITS_WAY_S: Final = 0.2  # for an answer, when a loop is told to stop
AWAY_FIRST_S: Final = 0.1
AWAY_MOST_S: Final = 5.0


class Failed(Exception):
    """For a handler to raise: its message is offered again, and what it says is logged without a trace."""


class StopConsuming(Exception):
    """For a handler to raise: its message is given back at once, and the loop ends after what runs."""


class Plan(msgspec.Struct, frozen=True):
    queue: str
    concurrency: int = 1
    visibility_s: float | None = None
    count: int | None = None
    idle_s: float | None = None


def nack_delay_s(deliveries: int, chance: Chance) -> float:
    """How long a message waits after its handler failed on delivery number `deliveries`."""
    longest = min(NACK_MOST_S, NACK_FIRST_S * 2.0 ** min(max(deliveries, 1) - 1, 30))
    return longest * (0.5 + chance.random() / 2)


def steady(
    do: Callable[[], Awaitable[R]], clock: Clock, chance: Chance, wait_s: float = 0.0
) -> Callable[[], Awaitable[R]]:
    """The same call, repeated with growing waits while the node or its store is away.

    A call that should have waited `wait_s` for something, and came back with nothing well before, is from a node
    that is closing down: the next one is held back a little.
    """

    async def again() -> R:
        attempt = 0
        while True:
            began_s = clock.elapsed_s()
            try:
                result = await do()
                if not result and clock.elapsed_s() - began_s < wait_s / 2:
                    await clock.sleep(AWAY_FIRST_S * (0.5 + chance.random() / 2))
                return result
            except Closed:
                raise
            except (StoreError, Paused) as error:
                longest = min(AWAY_MOST_S, AWAY_FIRST_S * 2.0 ** min(attempt, 30))
                if attempt == 0:
                    log.warning("waiting, and trying again: %s", error.says)
                attempt += 1
                asked_s = min(error.retry_after_s or 0.0, AWAY_MOST_S)
                await clock.sleep(max(longest * (0.5 + chance.random() / 2), asked_s))

    return again


class Consumer(Generic[H]):
    def __init__(
        self,
        client: AsyncClient[Any],
        take: Callable[[int, float, float], Awaitable[list[H]]],
        handler: Callable[[H], Awaitable[object]],
        plan: Plan,
        clock: Clock,
        chance: Chance,
    ) -> None:
        if plan.concurrency < 1:
            raise Invalid(f"concurrency is at least 1, not {plan.concurrency}")
        if plan.count is not None and plan.count < 1:
            raise Invalid(f"count is at least 1, not {plan.count}")
        if plan.idle_s is not None and not plan.idle_s >= 0:
            raise Invalid(f"idle_s is not below 0, as {plan.idle_s} is")
        self._client, self._take, self._handler, self._plan = client, take, handler, plan
        self._clock, self._chance = clock, chance
        self._running: dict[asyncio.Task[None], H] = {}
        self._settling: set[int] = set()  # those of them whose handlers have ended, by identity
        self._changed = asyncio.Event()  # a handler ended
        self._started = 0
        self._acked = 0
        self._stop = asyncio.Event()
        self._active_s = clock.elapsed_s()  # when a message was last worked on, or came
        self._queue_delays = False  # the queue's options say how long a nacked message waits

    async def run(self, stop: asyncio.Event) -> int:
        self._stop = stop
        options = await steady(self._options, self._clock, self._chance)()
        visibility_s = self._plan.visibility_s
        if visibility_s is None:
            visibility_s = float(options.get("visibility_s", 30.0))
        self._queue_delays = float(options.get("nack_delay_s", 0.0)) > 0
        heart = asyncio.create_task(self._beat(visibility_s))
        heart.add_done_callback(_died)
        hurry = False
        try:
            await self._fetch(stop, visibility_s)
        except asyncio.CancelledError:
            hurry = stop.is_set()  # it was asked to end before: this is the second time
            raise
        finally:
            try:
                await self._finish(hurry)
            finally:
                heart.cancel()
        return self._acked

    async def _options(self) -> dict[str, Any]:
        """Of the queue; what its group says comes first."""
        name, group = split_name(self._plan.queue)
        info = await self._client.show_queue(name)
        if info.kind != "log":
            return info.options
        await self._client.routes(name, group)  # makes the default group, which a look does not
        shown, _ = await self._client.groups.show(name, group)
        own = msgspec.structs.asdict(shown.options)
        return {**info.options, **{option: value for option, value in own.items() if value is not None}}

    async def _fetch(self, stop: asyncio.Event, visibility_s: float) -> None:
        stopping = asyncio.create_task(stop.wait())
        self._active_s = self._clock.elapsed_s()
        try:
            while not stop.is_set() and (self._plan.count is None or self._started < self._plan.count):
                free = self._plan.concurrency - len(self._running)
                if self._plan.count is not None:
                    free = min(free, self._plan.count - self._started)
                if free <= 0:
                    self._changed.clear()
                    changed = asyncio.ensure_future(self._changed.wait())
                    await asyncio.wait((changed, stopping), return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    continue
                wait_s = self._wait_s()
                take = partial(self._take, min(free, MAX_BATCH), wait_s, visibility_s)
                messages = await self._taken(steady(take, self._clock, self._chance, wait_s)(), stopping)
                for message in messages or ():
                    self._begin(message)
                if messages or self._running:
                    self._active_s = self._clock.elapsed_s()
                elif self._plan.idle_s is not None and self._clock.elapsed_s() - self._active_s >= self._plan.idle_s:
                    return
        finally:
            stopping.cancel()

    async def _taken(self, take: Awaitable[list[H]], stopping: asyncio.Task[Any]) -> list[H] | None:
        """What was taken, or None if `stopping` ends first: the take is then given up, after a moment for an answer
        that is on its way, whose messages go back at once instead of after their visibility."""
        task = asyncio.ensure_future(take)
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait((task,), timeout=ON_ITS_WAY_S)
                self._left(task)
                return None
        except asyncio.CancelledError:
            self._left(task)
            raise
        return task.result()

    def _left(self, task: asyncio.Future[list[H]]) -> None:
        """Nobody waits for it any more: what it brings all the same goes back."""
        if not task.done():
            task.add_done_callback(self._left)
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            self._client._return(self._plan.queue, task.result())

    def _wait_s(self) -> float:
        if self._plan.idle_s is None:
            return POLL_S
        return min(POLL_S, max(0.05, self._plan.idle_s - (self._clock.elapsed_s() - self._active_s)))

    def _begin(self, message: H) -> None:
        self._started += 1
        task = asyncio.create_task(self._handle(message))
        self._running[task] = message
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(id(self._running.pop(task)))
        self._active_s = self._clock.elapsed_s()
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a consumer task failed", exc_info=error)

    async def _handle(self, message: H) -> None:
        try:
            await self._handler(message)
        except StopConsuming:
            self._stop.set()
            await self._give_back(message, 0.0)
        except asyncio.CancelledError as failure:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # nobody cancelled it: what it waited for was
                await self._failed(message, failure)
                return
            await self._give_back(message, 0.0)
            raise
        except Exception as failure:
            await self._failed(message, failure)
        else:
            if await self._settle(message, "ack", self._client.ack(self._plan.queue, message)):
                self._acked += 1

    async def _failed(self, message: H, failure: BaseException) -> None:
        delay_s = None if self._queue_delays else nack_delay_s(message.deliveries, self._chance)
        when = "later" if delay_s is None else f"in {delay_s:.1f} s"
        if isinstance(failure, Failed):
            log.warning("%r is offered again %s: %s", message, when, failure)
        else:
            log.warning("%r failed, and is offered again %s", message, when, exc_info=failure)
        await self._give_back(message, delay_s)

    async def _give_back(self, message: H, delay_s: float | None) -> None:
        await self._settle(message, "nack", self._client.nack(self._plan.queue, message, delay_s))

    async def _settle(self, message: H, what: str, call: Awaitable[None]) -> bool:
        self._settling.add(id(message))
        try:
            await call
        except CapelliniError as error:
            log.warning("%s of %r: %s", what, message, error.says)
            return False
        return True

    async def _finish(self, hurry: bool) -> None:
        """Waits for the handlers that run; in a hurry, or cancelled meanwhile, it cancels them, and their messages are
        given back."""
        try:
            while self._running and not hurry:
                await asyncio.wait(list(self._running))
        finally:
            for task in self._running:
                task.cancel()
            if self._running:
                await asyncio.wait(list(self._running), timeout=GIVE_BACK_S)

    async def _beat(self, visibility_s: float) -> None:
        """Extends what is being worked on, in time for two more tries."""
        lost: set[int] = set()  # by identity: extended no more
        every_s = visibility_s / BEATS
        began_s = self._clock.elapsed_s()  # of the last: one that gets no answer does not cost the next its turn
        while True:
            await self._clock.sleep(max(0.0, began_s + every_s - self._clock.elapsed_s()))
            began_s = self._clock.elapsed_s()
            held = [message for message in self._running.values() if id(message) not in lost]
            lost &= {id(message) for message in self._running.values()}
            if not held:
                continue
            try:
                async with asyncio.timeout(every_s):
                    results = await self._client.extend_many(self._plan.queue, held, visibility_s)
            except (CapelliniError, TimeoutError) as error:
                log.warning("heartbeat of %d messages: %s", len(held), str(error) or "no answer in time")
                continue
            lost |= self._not_extended(held, results)

    def _not_extended(self, held: list[H], results: list[Done | Problem]) -> set[int]:
        """Which of them are lost. Other problems may be over by the next beat; they are said once for all that have
        the same."""
        lost: set[int] = set()
        others: Counter[str] = Counter()
        running = list(self._running.values())
        for message, result in zip(held, results, strict=True):
            if not isinstance(result, Problem) or message not in running or id(message) in self._settling:
                continue  # it is extended, or just done
            if result.error == Stale.name:
                lost.add(id(message))
                log.warning("%r is no longer ours; its handler goes on, others may get it too", message)
            else:
                others[result.says] += 1
        for says, count in others.items():
            log.warning("heartbeat of %d messages: %s", count, says)
        return lost


def _died(heart: asyncio.Task[None]) -> None:
    if not heart.cancelled() and (error := heart.exception()) is not None:
        log.error("heartbeats have ended: messages that take long may come to others, too", exc_info=error)
