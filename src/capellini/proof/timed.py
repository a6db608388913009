"""One simulated run of timed queues: a pure function of its seed.

As for the others (`proof.running`): turbulence, calm, drain, check. Here shards are owned, leases are short so that
pauses outlast them, nodes talk to each other over links that get cut, shard counts change, and messages are cancelled
and moved while they are on their way.
"""

from __future__ import annotations

import random
from typing import Final, cast

from capellini.proof.clients import Consumer, Producer
from capellini.proof.history import History, Violation
from capellini.proof.plan import MAX_SKEW_S, Plan
from capellini.proof.running import Run, prepared
from capellini.proof.suites import Result
from capellini.proof.timed_admin import TimedAdmin
from capellini.proof.timed_checkers import check_timed
from capellini.proof.timed_nodes import TimedNode, TimedNodes
from capellini.proof.timed_plan import timed_plan_of
from capellini.queues.timed.holder import FAILED
from capellini.queues.timed.positions import part_of, ticks_of_ms
from capellini.queues.timed.proofs import DELIVERY_BITS
from capellini.store.interface import Slice
from capellini.store.schema import TIMED_ROWS
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import EPOCH_S, World

LATE_S: Final = 60.0  # a part that is older should be gone


def simulate(seed: int) -> Result:
    return run(_run(seed), seed)


async def _run(seed: int) -> Result:
    plan = timed_plan_of(seed)
    world = World(faults=plan.faults)
    history = History([], EPOCH_S, MAX_SKEW_S, plan.skew_kept, epoch_bits=DELIVERY_BITS)
    await prepared(world, history)
    timed = _TimedRun(plan, world, history, random.Random(f"timed/{seed}"))

    def checked() -> list[Violation]:
        if failed := timed.nodes.guards()[FAILED]:
            history.broken.append(f"{failed} holders of shards failed")
        return check_timed(history)

    return await timed.result(seed, checked)


class TimedProducer(Producer):
    """Many are due only after their shard's holder has read as far as it does: cancels and moves meet them there."""

    delayed = 0.4
    most_delay_s = 12.0


class _TimedRun(Run):
    settled_s = 8.0  # a node may have begun amid faults: it waits out a call, and then the silence of one that died
    empty_s = 20.0  # longer than any delay

    def __init__(self, plan: Plan, world: World, history: History, chance: random.Random) -> None:
        super().__init__(plan, world, history, chance)
        self.nodes = TimedNodes(world, history, chance, plan.nodes)
        self._admin = TimedAdmin(self.nodes, chance, plan)
        queues = list(plan.queues)
        main = [queue for queue in queues if queue != "dead"]
        self._producers = [TimedProducer(f"p{at}", self.nodes, chance, main) for at in range(plan.producers)]
        self._consumers = [Consumer(f"c{at}", self.nodes, chance, queues) for at in range(plan.consumers)]
        self._drainer = Consumer("drain", self.nodes, chance, queues)

    async def calm(self) -> None:
        await cast(TimedAdmin, self._admin).start_all()
        await super().calm()

    async def _left(self) -> list[str]:
        """Rows of parts that are over: all in them is finished, and should have been dropped."""
        node = cast(TimedNode, self.nodes.pick())
        now_ms = int((EPOCH_S + self._world.loop.time() - LATE_S) * 1000)
        forms = {len(part_of(ticks_of_ms(now_ms), one)): one for one in ("minute", "hour", "day")}
        left: list[str] = []
        for table, key in sorted(self._world.partitions, key=repr):
            if table != TIMED_ROWS.name:
                continue
            part = str(key[2])
            page = await node.client.spawn(node.client.store.read(Slice(TIMED_ROWS, key, limit=1)))
            if page.rows and part < part_of(ticks_of_ms(now_ms), forms[len(part)]):
                left.append(f"part {part} of shard {key[3]!r} of {key[0]!r}, generation {key[1]!r}, has rows")
        return left
