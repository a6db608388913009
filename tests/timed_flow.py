"""Messages flowing through timed queues of real nodes under faults, judged by the checkers of timed queues."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tests.flow import Flow, Server, until

from capellini import CapelliniError, connect_async
from capellini.model.timed import ShardView
from capellini.proof.history import Violation
from capellini.proof.timed_checkers import check_timed
from capellini.queues.timed.proofs import DELIVERY_BITS

SHARDS: Final = 6


class TimedFlow(Flow):
    """With an eye on who holds which shard."""

    def __init__(
        self,
        servers: list[Server],
        seed: int,
        least: int,
        due_within_s: float,
        pause_s: float = 0.05,
        queue: str = "jobs",
    ) -> None:
        super().__init__(
            servers, seed, least, visibility_s=6.0, pause_s=pause_s, most_delay_s=due_within_s, kind="timed",
            options={"shards": SHARDS}, queue=queue,
        )  # fmt: skip
        self.history.epoch_bits = DELIVERY_BITS
        self.views: dict[int, ShardView] = {}

    async def look(self) -> None:
        """Ask any node that answers for the shards."""
        for server in self.servers:
            if not server.running:
                continue
            client, asked_s = connect_async(server.url, patience_s=0.0, request_timeout_s=3.0), self._now_s()
            try:
                views = {view.shard: view for view in await client.shards(self.queue)}
            except CapelliniError:
                continue
            finally:
                await client.close()
            changed = (one.epoch != views[shard].epoch for shard, one in self.views.items() if shard in views)
            self.looked(asked_s, any(changed))
            self.views = views
            return

    def held_by(self, name: str) -> set[int]:
        return {shard for shard, view in self.views.items() if view.holder == name}

    def worked(self, shards: set[int], without: set[str]) -> bool:
        """Has each of these another holder now?"""
        views = [self.views[shard] for shard in shards if shard in self.views]
        return len(views) == len(shards) and all(v.holder not in {"", *without} and v.state == "started" for v in views)

    async def taken_from(self, troubled: Server, act: Callable[[], None], gone: set[str]) -> float:
        """How long it takes until others work what this node held when that was done to it. `gone`: all that are in
        trouble."""
        name = troubled.name
        await until(lambda: bool(self.held_by(name)), f"{name} holds shards")
        gone.add(name)
        shards, began_s = self.held_by(name), time.monotonic()
        act()
        await until(lambda: self.worked(shards, gone), f"others work the shards of {name}")
        return time.monotonic() - began_s

    def verdict(self) -> list[Violation]:
        return check_timed(self.history)
