"""Between a group's messages and one consumer: pulls as fast as credits and the consumer's reading allow.

    credit > 0, and what was sent is being read ──▶ pull (waits for messages) ──▶ deliver ──▶ credit - count

Nothing is kept here: a consumer that is slow has its credits or its connection full, and then nothing is pulled for
it. What was pulled when the consumer is gone is given back at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from capellini.model.errors import CapelliniError, Invalid, Paused, StoreError, Unknown
from capellini.model.log import LogParcel, LogService, Settle
from capellini.model.streams import MAX_CREDIT, MAX_CREDIT_BYTES

log = logging.getLogger("capellini.api")

PULL_MESSAGES: Final = 10_000  # of one pull
WAIT_S: Final = 20.0  # of one pull that finds nothing
AWAY_S: Final = 0.25  # after a pull that the node could not do now; the stream goes on
HELD_BACK_S: Final = 1.0  # while gets are paused


class Pump:
    """`most_bytes` says how much one pull may have; `deliver` takes a parcel; `failed` is told an error that waiting
    cannot mend."""

    def __init__(
        self,
        service: LogService,
        queue: str,
        group: str,
        visibility_s: float | None,
        most_bytes: Callable[[], int],
        deliver: Callable[[LogParcel], None],
        failed: Callable[[CapelliniError], None],
    ) -> None:
        self._service, self._queue, self._group, self._visibility_s = service, queue, group, visibility_s
        self._most_bytes, self._deliver, self._failed = most_bytes, deliver, failed
        self.credit = 0
        self.credit_bytes: int | None = None  # None: they do not matter
        self._slow = False
        self._stopped = False
        self._go = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def add_credit(self, messages: int, size: int | None = None) -> None:
        """`size`: bytes; about so many may come, one message more at most. None: they do not matter. Raises Invalid."""
        if messages < 0 or (size or 0) < 0:
            raise Invalid(f"a credit is above zero, not {messages if messages < 0 else size}")
        if not messages and not size:  # one of them alone is fine: a client may have enough of the other
            raise Invalid("a credit of nothing lets nothing come: it is above zero in messages, or in bytes")
        if self.credit + messages > MAX_CREDIT:
            raise Invalid(f"credits end at {MAX_CREDIT} messages: {self.credit} are there, and {messages} came")
        if size is not None:
            have = self.credit_bytes or 0
            if have + size > MAX_CREDIT_BYTES:
                raise Invalid(f"credits end at {MAX_CREDIT_BYTES} bytes: {have} are there, and {size} came")
            self.credit_bytes = have + size
        self.credit += messages
        self._turn()

    def slow(self, is_slow: bool) -> None:
        self._slow = is_slow
        self._turn()

    def _turn(self) -> None:
        enough = self.credit > 0 and (self.credit_bytes is None or self.credit_bytes > 0)
        if enough and not self._slow and not self._stopped:
            self._go.set()
        else:
            self._go.clear()

    def stop(self) -> asyncio.Task[None]:
        """Pulls nothing more; done when what was just pulled is given back."""
        self._go.clear()
        if not self._stopped:
            self._stopped = True
            self._task.cancel()
        return self._task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a stream of %s@%s failed", self._queue, self._group, exc_info=error)
            self._failed(Unknown("something went wrong in the node, which its log tells more of"))

    async def _run(self) -> None:
        while True:
            await self._go.wait()
            count = min(self.credit, PULL_MESSAGES)
            most = self._most_bytes() if self.credit_bytes is None else min(self._most_bytes(), self.credit_bytes)
            pull = asyncio.ensure_future(
                self._service.pull(self._queue, self._group, count, most, WAIT_S, self._visibility_s)
            )
            try:
                parcels = await asyncio.shield(pull)
            except asyncio.CancelledError:
                await self._give_back(pull)
                raise
            except (StoreError, Paused) as error:
                log.debug("a stream of %s@%s waits: %s", self._queue, self._group, error)
                await asyncio.sleep(HELD_BACK_S if isinstance(error, Paused) else AWAY_S)
                continue
            except CapelliniError as error:
                self._stopped = True
                self._failed(error)
                return
            for parcel in parcels:
                self.credit -= parcel.count
                if self.credit_bytes is not None:
                    self.credit_bytes -= len(parcel.chunks)
                self._deliver(parcel)
            self._turn()

    async def _give_back(self, pull: asyncio.Future[list[LogParcel]]) -> None:
        """The consumer left while something was on its way to it: others get it at once."""
        pull.cancel()
        await asyncio.wait({pull})
        if pull.cancelled() or pull.exception() is not None:
            return
        items = [given_back(parcel) for parcel in pull.result()]
        if items:
            try:
                await self._service.settle(self._queue, self._group, items)
            except CapelliniError as error:
                log.debug("messages of %s@%s come back when their visibility ends: %s", self._queue, self._group, error)


def given_back(parcel: LogParcel) -> Settle:
    """Nobody has seen its messages."""
    return settle_of(parcel, "release", [(parcel.first, parcel.count)])


def settle_of(parcel: LogParcel, verb: str, ranges: Sequence[tuple[int, int]], value_ms: int | None = None) -> Settle:
    return Settle(
        parcel.extent, parcel.reader, parcel.epoch, parcel.delivery, parcel.first, parcel.count, parcel.code, verb,
        list(ranges), value_ms,
    )  # fmt: skip
