"""Messages flowing through log queues of real nodes under faults; one group, judged by the checkers of log queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from tests.flow import DEADLINE_S, Flow, Server

from capellini import CapelliniError, Unavailable, Unknown
from capellini.model.log import ExtentView, GroupInfo
from capellini.proof.history import Violation
from capellini.proof.log_checkers import check_log
from capellini.proof.log_history import LogHistory, Version, named, receipt_text
from capellini.queues.log.receipts import parse

GROUP = "g"
GENERATION = 1  # of a queue that is made once


class LogFlow(Flow):
    """`options`: of the queue. What is asked of the extents meanwhile is in `seen`, by name."""

    def __init__(
        self,
        servers: Sequence[Server],
        seed: int,
        least: int,
        options: dict[str, float | str],
        pause_s: float,
        queue: str = "jobs",
    ) -> None:
        super().__init__(
            servers, seed, least, visibility_s=6.0, pause_s=pause_s, kind="log",
            options=options, queue=queue,  # type: ignore[arg-type]
        )  # fmt: skip
        self.history: LogHistory = LogHistory(epoch_s=time.time())  # type: ignore[assignment]
        self.source = f"{self.queue}@{GROUP}"
        self.seen: dict[str, ExtentView] = {}
        self._epochs: dict[str, int] = {}

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

    def writes(self, name: str) -> bool:
        """Has this node an open extent?"""
        return any(view.node == name and view.state == "open" for view in self.seen.values())

    async def look(self) -> None:
        """Ask any node that answers for the extents and who reads them."""
        for server in self.servers:
            if not server.running:
                continue
            asked_s = self._now_s()
            try:
                async with asyncio.timeout(5):
                    views = await self._hasty[server.name].extents(self.queue)
            except (CapelliniError, TimeoutError):
                continue
            epochs = {view.extent: int(view.readers[GROUP]["epoch"]) for view in views if GROUP in view.readers}
            self.looked(asked_s, any(self._epochs.get(extent, 0) != epoch for extent, epoch in epochs.items()))
            self._epochs |= epochs
            self.seen |= {view.extent: view for view in views}
            return

    async def _drain(self) -> None:
        await super()._drain()
        await self.look()
        for view in self.seen.values():
            if view.sealed_at is not None and view.end is not None:
                self.history.ends[named(GENERATION, view.extent)] = view.end

    def verdict(self) -> list[Violation]:
        return check_log(self.history)
