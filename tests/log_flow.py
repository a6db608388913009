"""Messages flowing through log queues of real nodes under faults; one group, judged by the checkers of log queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from tests.flow import DEADLINE_S, Flow, Server

from capellini import CapelliniError, Unavailable, Unknown
from capellini.model.log import ExtentView, GroupInfo
from capellini.proof.history import Violation
from capellini.proof.log_checkers import check_log
from capellini.proof.log_history import LogHistory, Version, named, receipt_text
from capellini.queues.log.receipts import parse

GROUP = "g"
GENERATION = 1  # of a queue that is made once
LOOK_S = 0.1
GRAIN_S = 0.005  # a takeover lies somewhere between two looks: every moment there may be the one


class LogFlow(Flow):
    """`options`: of the queue. What is asked of the extents meanwhile is in `seen`, by name."""

    def __init__(
        self, servers: Sequence[Server], seed: int, least: int, options: dict[str, float | str], **more: float
    ) -> None:
        super().__init__(
            servers, seed, least, visibility_s=6.0, kind="log", options=options,  # type: ignore[arg-type]
            **more,  # type: ignore[arg-type]
        )  # fmt: skip
        self.history: LogHistory = LogHistory(epoch_s=time.time())  # type: ignore[assignment]
        self.source = f"{self.queue}@{GROUP}"
        self.seen: dict[str, ExtentView] = {}
        self._epochs: dict[str, int] = {}
        self._looked_s = 0.0

    def noted_id(self, id: str) -> str:
        return named(GENERATION, id) if ":" in id else id

    def noted(self, receipt: str) -> str:
        said = parse(receipt)
        place = self.noted_id(f"{said.extent}:{said.number}")
        return receipt_text(named(GENERATION, said.reader), said.epoch, said.delivery, place)

    async def _create(self) -> None:
        await super()._create()
        options = {"mode": "ap", "consumed_s": 3_600.0, **self.options}
        made = self.history.begin("flow", self.servers[0].name, "create", self.queue, self._now_s())
        made.options, made.ended_s = options, self._now_s()
        client, end_s = self._patient[self.servers[0].name], time.monotonic() + DEADLINE_S
        call = self.history.begin("flow", self.servers[0].name, "create_group", self.source, self._now_s())
        while True:
            try:
                info: GroupInfo = await client.groups.create(self.queue, GROUP)
                break
            except (Unavailable, Unknown):
                assert time.monotonic() < end_s, "the group cannot be created"
        version = Version(GENERATION, info.version)
        call.options = {
            "start": "earliest", "version": info.version, "generation": GENERATION, "start_at": info.start_at,
        }  # fmt: skip
        call.ended_s = self._now_s()
        self.history.final[self.source] = version.of(GROUP)

    async def look(self) -> None:
        """Ask any node that answers for the extents, and note when their reading was taken over."""
        for server in self.servers:
            if not server.running:
                continue
            try:
                async with asyncio.timeout(5):
                    views = await self._hasty[server.name].extents(self.queue)
            except (CapelliniError, TimeoutError):
                continue
            self._note_extents(views)
            return

    def _note_extents(self, views: Sequence[ExtentView]) -> None:
        now_s = self._now_s()
        epochs = {view.extent: int(view.readers[GROUP]["epoch"]) for view in views if GROUP in view.readers}
        if any(self._epochs.get(extent, 0) != epoch for extent, epoch in epochs.items()):
            moments = int((now_s - self._looked_s) / GRAIN_S) + 1
            self.history.taken_over_s += [self._looked_s + GRAIN_S * each for each in range(moments)]
        self._epochs |= epochs
        self._looked_s = now_s
        for view in views:
            self.seen[view.extent] = view

    async def _looks(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def _work(self, faults: Callable[[Flow], Awaitable[None]]) -> None:
        looks = asyncio.create_task(self._looks())
        try:
            await super()._work(faults)
        finally:
            looks.cancel()

    async def _drain(self) -> None:
        looks = asyncio.create_task(self._looks())
        try:
            await super()._drain()
        finally:
            looks.cancel()
        await self.look()
        for view in self.seen.values():
            if view.sealed_at is not None and view.end is not None:
                self.history.ends[named(GENERATION, view.extent)] = view.end

    def verdict(self) -> list[Violation]:
        return check_log(self.history)
