"""Lost answers in the simulated store: every compare-and-set that `settle` answers is answered rightly.

Real stores lose answers too rarely to wait for; here a tenth of them is lost, late or stalled, in virtual time.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.conformance.harness import SERIAL, Harness
from tests.conformance.simulated import in_world
from tests.conformance.tables import GUARDED

from capellini.model.errors import Unavailable, Unknown
from capellini.store.interface import ABSENT, Cas, Change, Outcome, Page, settle
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run

FAULTS = Faults(
    lost_answer=0.15, lost_request=0.1, late_cas=0.05, stall_cas=0.05, limbo_cas=0.05, refused=0.05, late_most_s=30.0
)
SEEDS = range(12)
TASKS, STEPS = 4, 10


def add_one(p: str, seen: int | None, token: str) -> Cas:
    """The token goes into a row of its own: `version` says who was the last, rows say who ever was."""
    number = (seen or 0) + 1
    static = Change(None, {"version": seen}, {"version": number, "head": token})
    return Cas(GUARDED, (p,), (static, Change((number,), ABSENT, {"token": token})))


async def page_of(h: Harness, p: str, limit: int) -> Page:
    """Answers of reads are lost, too: until one comes."""
    while True:
        try:
            return await h.read(GUARDED, p, limit=limit, level=SERIAL)
        except Unavailable:
            await h.clock.sleep(1)


async def until_read(h: Harness, p: str) -> int | None:
    version = (await page_of(h, p, 0)).static.get("version")
    assert version is None or isinstance(version, int)
    return version


@pytest.mark.parametrize("seed", SEEDS)
def test_what_settle_says_is_what_happened(seed: int) -> None:
    says: Counter[str] = Counter()

    async def check(h: Harness) -> None:
        p = h.key()
        applied: set[str] = set()
        unknown: set[str] = set()

        async def add(task: int) -> None:
            for step in range(STEPS):
                token = f"{task}/{step}"
                cas = add_one(p, await until_read(h, p), token)
                number = cas.changes[1].key

                def mine(outcome: Outcome, number: object = number, token: str = token) -> bool:
                    return any(key == number and row.get("token") == token for key, row in outcome.rows.items())

                try:
                    outcome = await settle(h.store, cas, mine, h.clock.sleep)
                except Unknown:
                    unknown.add(token)
                    says["unknown"] += 1
                except Unavailable:
                    says["unavailable"] += 1
                else:
                    says["applied" if outcome.applied else "refused"] += 1
                    if outcome.applied:
                        applied.add(token)

        await asyncio.gather(*(add(task) for task in range(TASKS)))
        await h.clock.sleep(FAULTS.late_most_s * 2)  # all that is late has landed
        last = await until_read(h, p)
        found = [row.values["token"] for row in (await page_of(h, p, 1_000)).rows]
        assert len(found) == (last or 0) == len(set(found))  # each number once, each token once
        assert applied <= set(found) <= applied | unknown
        assert h.store.counts.unknown > 0

    run(in_world(check, FAULTS), seed=seed)
    assert says["applied"] > 0 and says["refused"] > 0


def test_answers_were_lost_and_counted() -> None:
    lost = 0

    async def check(h: Harness) -> None:
        nonlocal lost
        for number in range(200):
            try:
                await h.cas(GUARDED, h.key(), Change((number,), ABSENT, {"token": "x"}))
            except Unknown:
                lost += 1
            except Unavailable:
                continue
        assert h.store.counts.unknown == lost

    run(in_world(check, FAULTS), seed=1)
    assert lost > 10
