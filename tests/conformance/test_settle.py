"""Lost answers: `settle` finds out what became of a compare-and-set, and is right."""

from __future__ import annotations

import asyncio

from tests.conformance.harness import SERIAL, Harness, every_store
from tests.conformance.tables import GUARDED

from capellini.store.interface import ABSENT, Cas, Change, Outcome, settle


def take(p: str, token: str) -> Cas:
    return Cas(GUARDED, (p,), (Change((1,), {"state": "free", "token": None}, {"state": "taken", "token": token}),))


def is_mine(token: str, outcome: Outcome) -> bool:
    return outcome.rows.get((1,), {}).get("token") == token


@every_store
async def test_settle_of_an_answered_compare_and_set_is_its_answer(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "free"}))
    first = await settle(h.store, take(p, "one"), lambda outcome: is_mine("one", outcome), h.clock.sleep)
    assert first.applied
    second = await settle(h.store, take(p, "two"), lambda outcome: is_mine("two", outcome), h.clock.sleep)
    assert not second.applied and is_mine("one", second)
    assert (await h.rows(GUARDED, p, level=SERIAL))[(1,)] == {"state": "taken", "token": "one"}


@every_store
async def test_a_token_of_an_answered_attempt_is_not_taken_for_a_lost_one(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "free"}))
    cas = take(p, "same")
    assert (await settle(h.store, cas, lambda outcome: is_mine("same", outcome), h.clock.sleep)).applied
    again = await settle(h.store, cas, lambda outcome: is_mine("same", outcome), h.clock.sleep)
    assert not again.applied  # answered at once: nothing was lost, so this attempt did nothing


@every_store
async def test_of_many_who_settle_one_has_it(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "free"}))

    async def try_(token: str) -> bool:
        outcome = await settle(h.store, take(p, token), lambda outcome: is_mine(token, outcome), h.clock.sleep)
        return outcome.applied

    tokens = [f"t{number}" for number in range(6)]
    won = await asyncio.gather(*(try_(token) for token in tokens))
    assert sum(won) == 1
    assert (await h.rows(GUARDED, p, level=SERIAL))[(1,)]["token"] == tokens[won.index(True)]


@every_store
async def test_settle_with_an_absent_row(h: Harness) -> None:
    p = h.key()
    cas = Cas(GUARDED, (p,), (Change((1,), ABSENT, {"state": "new", "token": "mine"}),))
    assert (await settle(h.store, cas, lambda outcome: is_mine("mine", outcome), h.clock.sleep)).applied
    other = Cas(GUARDED, (p,), (Change((1,), ABSENT, {"state": "new", "token": "other"}),))
    refused = await settle(h.store, other, lambda outcome: is_mine("other", outcome), h.clock.sleep)
    assert not refused.applied and is_mine("mine", refused)
