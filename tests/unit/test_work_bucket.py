"""Decisions on a bucket against the obvious model: one little state machine per message."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from capellini.queues.work import bucket
from capellini.queues.work.bucket import NEVER_MS, Offer, Proof
from capellini.queues.work.runs import FINISHED, FRESH, HIDDEN, MOVING, RETURNING, UNTAKEN, VOID, WAITING, Runs, pieces

SIZE = 8
LIMIT = 3
slots = st.integers(0, SIZE - 1)
times = st.integers(0, 40)


@dataclass
class Slot:
    """A message of the model."""

    kind: int = FRESH
    version: int = 0
    at_ms: int = 0


@dataclass
class Model:
    slots: list[Slot] = field(default_factory=lambda: [Slot() for _ in range(SIZE)])

    def held(self, proof: Proof) -> list[int]:
        return [
            at
            for at in range(proof.start, proof.end)
            if self.slots[at].kind == HIDDEN and self.slots[at].version == proof.version
        ]


class Buckets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runs: Runs = ()
        self.model = Model()
        self.now_ms = 100

    @rule(by=st.integers(1, 10))
    def time_passes(self, by: int) -> None:
        self.now_ms += by

    @rule(
        first=slots,
        length=st.integers(1, SIZE),
        wanted=st.integers(0, SIZE),
        due=st.one_of(st.just(0), times),
        expires=st.one_of(st.just(None), times),
        hidden_for=st.integers(1, 20),
        limit=st.sampled_from((0, LIMIT)),
    )
    def claim(
        self, first: int, length: int, wanted: int, due: int, expires: int | None, hidden_for: int, limit: int
    ) -> None:
        end = min(SIZE, first + length)
        due_ms = 100 + due if due else 0
        expires_ms = NEVER_MS if expires is None else 110 + expires
        until_ms = self.now_ms + hidden_for
        offers = [Offer(first, end, due_ms, expires_ms)]
        self.runs, claimed = bucket.claim(self.runs, offers, wanted, self.now_ms, until_ms, limit)
        taken, dead, expired = [], [], []
        for at in range(first, end):
            slot = self.model.slots[at]
            if slot.kind not in (FRESH, HIDDEN, WAITING):
                continue
            ready = (due_ms if slot.kind == FRESH else slot.at_ms) <= self.now_ms
            if expires_ms <= self.now_ms and (ready or slot.kind == FRESH):
                slot.kind, slot.at_ms = FINISHED, 0
                expired.append(at)
            elif not ready:
                if slot.kind == FRESH:
                    slot.kind, slot.at_ms = WAITING, due_ms
            elif limit and slot.version >= limit:
                slot.kind, slot.at_ms = MOVING, self.now_ms + bucket.MOVE_AGAIN_MS
                dead.append(at)
            elif len(taken) < wanted:
                slot.kind, slot.version, slot.at_ms = HIDDEN, slot.version + 1, until_ms
                taken.append(at)
        assert [at for run in claimed.taken for at in range(run.start, run.end)] == taken
        assert [at for run in claimed.dead for at in range(run.start, run.end)] == dead
        assert [at for run in claimed.expired for at in range(run.start, run.end)] == expired
        assert all(self.model.slots[run.start].version == run.version for run in claimed.taken)

    @rule(
        start=slots,
        length=st.integers(1, 3),
        version=st.integers(1, 3),
        how=st.sampled_from(("ack", "nack", "extend")),
        later=st.integers(0, 20),
    )
    def use_a_receipt(self, start: int, length: int, version: int, how: str, later: int) -> None:
        proof = Proof(start, min(SIZE, start + length), version)
        held, at_ms = self.model.held(proof), self.now_ms + later
        before = self.runs
        match how:
            case "ack":
                self.runs, pieces_held = bucket.acked(self.runs, proof)
                new = (FINISHED, 0)
            case "nack":
                self.runs, pieces_held = bucket.nacked(self.runs, proof, at_ms)
                new = (WAITING, at_ms)
            case _:
                self.runs, pieces_held = bucket.extended(self.runs, proof, at_ms)
                new = (HIDDEN, at_ms)
        for at in held:
            self.model.slots[at].kind, self.model.slots[at].at_ms = new
        assert [at for run in pieces_held for at in range(run.start, run.end)] == held
        assert held or self.runs is before

    @rule(start=slots, length=st.integers(1, SIZE))
    def void(self, start: int, length: int) -> None:
        end = min(SIZE, start + length)
        self.runs, voided = bucket.voided(self.runs, start, end)
        fresh = [at for at in range(start, end) if self.model.slots[at].kind == FRESH]
        for at in fresh:
            self.model.slots[at].kind = VOID
        assert [at for run in voided for at in range(run.start, run.end)] == fresh

    @rule(start=slots, length=st.integers(1, SIZE), later=st.integers(0, 20))
    def send_back(self, start: int, length: int, later: int) -> None:
        end = min(SIZE, start + length)
        free = [
            at
            for at, slot in enumerate(self.model.slots[start:end], start)
            if slot.kind in UNTAKEN or (slot.kind in (HIDDEN, WAITING, RETURNING) and slot.at_ms <= self.now_ms)
        ]
        self.runs, got = bucket.summoned(self.runs, start, end, self.now_ms, self.now_ms + later)
        for at in free:
            self.model.slots[at].kind, self.model.slots[at].at_ms = RETURNING, self.now_ms + later
        assert [at for run in got for at in range(run.start, run.end)] == free

    @rule(start=slots, length=st.integers(1, SIZE), how=st.sampled_from(("up", "done", "back")))
    def go_on_with_moves(self, start: int, length: int, how: str) -> None:
        end = min(SIZE, start + length)
        moving = [at for at in range(start, end) if self.model.slots[at].kind in (MOVING, RETURNING)]
        if how == "up":
            moving = [at for at in moving if self.model.slots[at].at_ms <= self.now_ms]
            self.runs, got = bucket.taken_up(self.runs, start, end, self.now_ms)
            for at in moving:
                self.model.slots[at].at_ms = self.now_ms + bucket.MOVE_AGAIN_MS
        elif how == "done":
            self.runs, got = bucket.moved(self.runs, start, end)
            for at in moving:
                self.model.slots[at].kind, self.model.slots[at].at_ms = FINISHED, 0
        else:
            self.runs, got = bucket.unmoved(self.runs, start, end, self.now_ms + 7)
            for at in moving:
                self.model.slots[at].kind, self.model.slots[at].at_ms = WAITING, self.now_ms + 7
        assert [at for run in got for at in range(run.start, run.end)] == moving

    @invariant()
    def the_runs_say_what_the_model_says(self) -> None:
        for piece in pieces(self.runs, 0, SIZE):
            for at in range(piece.start, piece.end):
                slot = self.model.slots[at]
                assert (piece.kind, piece.version) == (slot.kind, slot.version)
                assert piece.at_ms == (slot.at_ms if slot.kind in (HIDDEN, WAITING, MOVING, RETURNING) else 0)

    @invariant()
    def it_stands_as_the_model_stands(self) -> None:
        kinds = [slot.kind for slot in self.model.slots]
        timed = [slot.at_ms for slot in self.model.slots if slot.kind in (HIDDEN, WAITING, MOVING, RETURNING)]
        stands = bucket.standing(self.runs, SIZE)
        assert stands.fresh == kinds.count(FRESH)
        assert stands.next_ms == min(timed, default=NEVER_MS)
        assert stands.finished == all(kind in (FINISHED, VOID) for kind in kinds)
        ready = [at for run in bucket.ready_again(self.runs, self.now_ms) for at in range(run.start, run.end)]
        assert ready == [
            at
            for at, slot in enumerate(self.model.slots)
            if slot.kind in (HIDDEN, WAITING) and slot.at_ms <= self.now_ms
        ]


TestBuckets = Buckets.TestCase
TestBuckets.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
