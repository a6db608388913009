"""One simulated run of log queues: a pure function of its seed.

As for all (`proof.running`): turbulence, calm, drain, check. Extents are tiny, so that a run sees many sealed and
opened; leases are short, so that pauses outlast them; producers resend, groups are sought back and made anew, and each
group is drained for itself.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final, cast

from capellini.proof.clients import Consumer
from capellini.proof.history import History
from capellini.proof.log_admin import LogAdmin
from capellini.proof.log_calls import LogCalls
from capellini.proof.log_checkers import check_log
from capellini.proof.log_clients import LogConsumer, LogProducer, SequencedProducer
from capellini.proof.log_history import LogHistory, dead_of, named
from capellini.proof.log_nodes import LogNodes
from capellini.proof.log_plan import KEPT_S, LogPlan, log_plan_of
from capellini.proof.nodes import Node
from capellini.proof.plan import MAX_SKEW_S
from capellini.proof.running import Run, prepared
from capellini.proof.suites import Result
from capellini.queues.log.extents import Extent, extent_of
from capellini.store.interface import Slice
from capellini.store.schema import LOG_BLOCKS, LOG_EXTENTS
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import EPOCH_S, World

REPLICAS: Final = 3
CUT_S: Final = (0.5, 6.0)  # how long data centres are cut from each other
LOOK_S: Final = 0.6  # between looks at what is left: other nodes are asked each time


def simulate(seed: int) -> Result:
    return run(_run(seed), seed)


async def _run(seed: int) -> Result:
    plan = log_plan_of(seed)
    world = World(faults=plan.faults, replicas=plan.dcs or REPLICAS)
    history = LogHistory([], EPOCH_S, MAX_SKEW_S, plan.skew_kept)
    await prepared(world, history)
    log = _LogRun(plan, world, history, random.Random(f"log/{seed}"))
    return await log.result(seed, lambda: check_log(history))


class _LogRun(Run):
    nodes: LogNodes
    empty_s = 11.0  # longer than any visibility, delay, or put into the dead letters takes
    waiting = 1

    def __init__(self, plan: LogPlan, world: World, history: History, chance: random.Random) -> None:
        super().__init__(plan, world, history, chance)
        self.calm_work_s = plan.calm_s
        self.nodes = LogNodes(world, history, chance, plan)
        self._admin = LogAdmin(self.nodes, chance, plan)
        self._readers = [f"{queue}@{group}" for queue in plan.queues for group in plan.groups]
        self._letters = [
            dead_of(queue, name)
            for queue in plan.queues
            for name, group in plan.groups.items()
            if group.options.get("delivery_limit")
        ]
        queues = list(plan.queues)
        dcs = [*plan.dcs] if plan.queues["a"]["mode"] == "ap" and plan.dcs else [None]
        self._producers = [LogProducer("p0", self.nodes, chance, queues, chance.choice(dcs))]
        self._producers += [
            SequencedProducer(f"p{at}", self.nodes, chance, chance.choice(queues), plan.window, chance.choice(dcs))
            for at in range(1, plan.producers)
        ]
        sources = self._readers * 2 + self._letters
        self._consumers = [LogConsumer(f"c{at}", self.nodes, chance, sources) for at in range(plan.consumers)]
        self._drainer = Consumer("drain", self.nodes, chance, sources)

    @property
    def _sources(self) -> list[str]:
        return self._readers + self._letters

    async def turbulence(self) -> None:
        cuts = asyncio.ensure_future(self._cuts())
        await super().turbulence()
        cuts.cancel()

    async def _trouble(self, end_s: float) -> None:
        """As for others, but not once all clients have left."""
        every_s, chance, loop = self._plan.node_trouble_every_s, self._chance, self._world.loop
        while every_s:
            wait_s = chance.expovariate(1 / every_s)
            if loop.time() + wait_s >= end_s:
                return
            await asyncio.sleep(wait_s)
            await self._trouble_a_node()

    async def _cuts(self) -> None:
        """Data centres are cut from each other, and heal."""
        every_s, chance = cast(LogPlan, self._plan).cut_dcs_every_s, self._chance
        while every_s:
            await asyncio.sleep(chance.expovariate(1 / every_s))
            self._world.faults["data_centres_cut"] += 1
            self.nodes.cut()
            await asyncio.sleep(chance.uniform(*CUT_S))
            self.nodes.heal()

    async def calm(self) -> None:
        self.nodes.people()
        await super().calm()

    async def _drained(self, queue: str) -> int:
        """As others do, but without waiting there: that would be most of what a run costs."""
        deliveries = await self._drainer.get(queue, 100, 0.0, 30.0)
        if deliveries:
            await self._drainer.ack(queue, [one.receipt for one in deliveries])
        else:
            await asyncio.sleep(LOOK_S)
        return len(deliveries)

    async def _left(self) -> list[str]:
        """Blocks of generations that are over, and of extents that all groups have finished, where these are not kept
        for longer. An open extent has no end yet."""
        node = self.nodes.pick()
        live = await self._live(node)
        listed = await self._listed(node)
        left: list[str] = []
        for table, key in sorted(self._world.partitions, key=repr):
            if table != LOG_BLOCKS.name:
                continue
            queue, generation, name = str(key[0]), int(key[1]), str(key[2])
            page = await node.client.spawn(node.client.store.read(Slice(LOG_BLOCKS, key, limit=1)))
            over = live.get(queue) != generation
            extent = listed.get(named(generation, name))
            gone = float(self._plan.queues[queue]["consumed_s"]) < KEPT_S and (extent is None or extent.sealed)
            if page.rows and (over or gone):
                left.append(f"extent {name} of {queue}, generation {generation}, has blocks and should be dropped")
        return left

    async def _live(self, node: Node) -> dict[str, int]:
        """The generations of the queues that there are."""
        records = await node.client.spawn(node.broker.catalog.queues())
        return {record.name: record.generation for record in records}

    async def _listed(self, node: Node) -> dict[str, Extent]:
        """All extents on the lists of all queues and generations."""
        found: dict[str, Extent] = {}
        for table, key in sorted(self._world.partitions, key=repr):
            if table == LOG_EXTENTS.name:
                page = await node.client.spawn(node.client.store.read(Slice(LOG_EXTENTS, key, limit=5_000)))
                for row in page.rows:
                    extent = extent_of(str(key[2]), str(row.key[0]), row.values)
                    if extent is not None:
                        found[named(int(key[1]), extent.name)] = extent
        return found

    async def look_for_leftovers(self) -> None:
        await super().look_for_leftovers()
        await self._look_at_the_end()

    async def _look_at_the_end(self) -> None:
        """The ends of extents, and the versions of groups, as they are when nothing changes any more. A queue may be
        gone: a deletion that nobody had an answer to came late."""
        history, node = cast(LogHistory, self._history), self.nodes.pick()
        calls, queues = cast(LogCalls, node.broker), await self._live(node)
        for queue in [queue for queue in self._plan.queues if queue in queues]:
            for group, reader in (await node.client.spawn(calls.readers(queue))).items():
                history.final[f"{queue}@{group}"] = reader
        live = set(queues.values())  # what is cleared is sealed where it happens to be
        for name, extent in (await self._listed(node)).items():
            if extent.end is not None and int(name.partition(".")[0]) in live:
                history.ends[name] = extent.end
