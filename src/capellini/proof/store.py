"""One simulated run of the store itself: does it keep what its interface promises, whatever goes wrong inside?

Several clients write rows with keys of their own (two to a batch), and fight for one row by compare-and-set. From what
came back:

- a write that was confirmed is in every later read; one that was refused is in none; a batch is seen whole;
- compare-and-sets of a partition are one chain: no two were applied on the same value, and none that was surely refused
  is ever seen; a serial read shows the chain's end, or something later.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from typing import Final

import msgspec

from capellini.model.errors import Unavailable, Unknown
from capellini.proof.history import Violation
from capellini.proof.plan import plan_of
from capellini.proof.suites import Result
from capellini.queues.trail import follow, names_of, settle_named
from capellini.store.interface import Batch, Cas, Change, Column, Level, Page, Slice, Table, Type
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import CALM_S, World

ROWS: Final = Table(
    name="proof_rows",
    doc="Rows that are written once.",
    partition=(Column("part", Type.INT),),
    clustering=(Column("at", Type.INT),),
    columns=(Column("twin", Type.INT),),
)
CHAIN: Final = Table(
    name="proof_chain",
    doc="One row that everybody wants to change.",
    partition=(Column("part", Type.INT),),
    columns=(Column("token", Type.TEXT),),
    conditional=frozenset(("token",)),
)
PARTS: Final = 3
CLIENTS: Final = 4
RUN_S: Final = 40.0
DONE, REFUSED, MAYBE = "done", "refused", "maybe"


class _Write(msgspec.Struct, frozen=True):
    part: int
    keys: tuple[int, int]
    ended_s: float
    how: str


class _Seen(msgspec.Struct, frozen=True):
    part: int
    began_s: float
    keys: frozenset[int]


class _Link(msgspec.Struct, frozen=True):
    part: int
    token: str
    before: str | None
    ended_s: float
    how: str


def simulate(seed: int) -> Result:
    return run(_run(seed), seed)


async def _run(seed: int) -> Result:
    world = World(faults=plan_of(seed).faults)
    proof = _Proof(world, random.Random(f"store/{seed}"))
    clients = [world.client(f"c{at}") for at in range(CLIENTS)]
    await clients[0].store.prepare((ROWS, CHAIN))
    await asyncio.gather(*[client.spawn(proof.work(client)) for client in clients])
    world.calm()
    await clients[0].clock.sleep(2 * CALM_S)
    for part in range(PARTS):
        await clients[0].spawn(proof.read(clients[0], part))
        await clients[0].spawn(proof.look(clients[0], part))
    return Result(
        seed=seed,
        violations=proof.rows_broken() + proof.chain_broken(),
        virtual_s=world.loop.time(),
        messages=len(proof.writes),
        faults=dict(world.faults),
        guards={f"lost answer resolved: {how}": times for how, times in proof.settled.items()},
        history=[repr(one) for one in (*proof.writes, *proof.links)],
    )


class _Proof:
    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._next = 0
        self.writes: list[_Write] = []
        self.seen: list[_Seen] = []
        self.links: list[_Link] = []
        self.looks: list[tuple[int, float, str | None]] = []  # part, when it began, the token that a serial read showed
        self.settled: Counter[str] = Counter()

    async def work(self, client: SimulatedClient) -> None:
        while self._world.loop.time() < RUN_S:
            part = self._chance.randrange(PARTS)
            act = self._chance.choice((self._write, self._write, self.read, self._link, self._link, self.look))
            await act(client, part)
            await client.clock.sleep(self._chance.expovariate(1 / 0.1))

    async def _how(self, act: Awaitable[object]) -> str:
        try:
            await act
        except Unavailable:
            return REFUSED
        except Unknown:
            return MAYBE
        return DONE

    async def _write(self, client: SimulatedClient, part: int) -> None:
        self._next += 2
        keys = (self._next, self._next + 1)
        rows = tuple(((key,), {"twin": keys[0]}) for key in keys)
        how = await self._how(client.store.write(Batch(ROWS, (part,), rows)))
        self.writes.append(_Write(part, keys, self._world.loop.time(), how))

    async def read(self, client: SimulatedClient, part: int) -> None:
        began_s = self._world.loop.time()
        try:
            page: Page = await client.store.read(Slice(ROWS, (part,), limit=100_000))
        except Unavailable:
            return
        self.seen.append(_Seen(part, began_s, frozenset(int(str(row.key[0])) for row in page.rows)))

    async def look(self, client: SimulatedClient, part: int) -> str | None:
        """The row's trail of names."""
        began_s = self._world.loop.time()
        try:
            page = await client.store.read(Slice(CHAIN, (part,), limit=1, level=Level.SERIAL))
        except Unavailable:
            return None
        token = page.rows[0].values.get("token") if page.rows else None
        shown = token if isinstance(token, str) else None
        self.looks.append((part, began_s, _newest(shown)))
        return shown

    async def _link(self, client: SimulatedClient, part: int) -> None:
        """Change the row on what it was seen to be; half of them until it is known what became of it."""
        trail = await self.look(client, part)
        self._next += 1
        name = f"t{self._next}"
        cas = Cas(CHAIN, (part,), (Change((), {"token": trail}, {"token": follow(trail, name)}),))
        try:
            if self._chance.random() < 0.5:
                applied = (await client.store.compare_and_set(cas)).applied
            else:
                outcome = await settle_named(client.store, client.clock, cas, (), trail, name)
                self.settled["done" if outcome.applied else "not_done"] += outcome.lost
                applied = outcome.applied
            how = DONE if applied else REFUSED
        except Unavailable:
            how = REFUSED
        except Unknown:
            how = MAYBE
        self.links.append(_Link(part, name, _newest(trail), self._world.loop.time(), how))

    def rows_broken(self) -> list[Violation]:
        found: list[Violation] = []
        for write in self.writes:
            for seen in self.seen:
                if seen.part != write.part:
                    continue
                there = [key in seen.keys for key in write.keys]
                if write.how == DONE and seen.began_s > write.ended_s and not all(there):
                    found.append(Violation(1, str(write.keys), f"confirmed at {write.ended_s:.3f} s, not read later"))
                elif write.how == REFUSED and any(there):
                    found.append(Violation(9, str(write.keys), f"refused at {write.ended_s:.3f} s, and read"))
                elif self._world.profile.page_rows >= 1_000 and any(there) != all(there):
                    found.append(Violation(11, str(write.keys), f"half of a batch was read at {seen.began_s:.3f} s"))
        return found

    def chain_broken(self) -> list[Violation]:
        found: list[Violation] = []
        after: dict[tuple[int, str | None], str] = {}
        links = {link.token: link for link in self.links}
        for link in self.links:
            if link.how != DONE:
                continue
            if (other := after.setdefault((link.part, link.before), link.token)) != link.token:
                found.append(Violation(2, link.token, f"applied on {link.before}, as {other} was"))
        for part, began_s, shown in self.looks:
            if shown is not None and links[shown].how == REFUSED:
                found.append(Violation(9, shown, f"surely refused, and read in {part} at {began_s:.3f} s"))
            way = self._way(links, shown)
            for link in self.links:
                if link.part == part and link.how == DONE and link.ended_s < began_s and link.token not in way:
                    found.append(Violation(1, link.token, f"applied at {link.ended_s:.3f} s, gone at {began_s:.3f} s"))
        return found

    @staticmethod
    def _way(links: dict[str, _Link], token: str | None) -> set[str]:
        """The token and all before it."""
        way: set[str] = set()
        while token is not None and token not in way:
            way.add(token)
            token = links[token].before if token in links else None
        return way


def _newest(trail: str | None) -> str | None:
    return next(iter(names_of(trail)), None)
