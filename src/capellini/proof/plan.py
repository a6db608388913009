"""What a simulated run of work queues is like, drawn from its seed: nodes, queues, clients, and what goes wrong."""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from capellini.store.simulation.faults import Faults

MAX_SKEW_S: Final = 0.5
TURBULENT_S: Final = (10.0, 22.0)  # how long things go wrong
MOST_VISIBILITY_S: Final = 5.0
MOST_DELAY_S: Final = 4.0


class Plan(msgspec.Struct, frozen=True):
    nodes: int
    producers: int
    consumers: int
    turbulent_s: float
    queues: dict[str, dict[str, Any]]  # by name, in the order of creation
    faults: Faults
    skew_kept: bool
    node_trouble_every_s: float  # a node crashes, or is drained and started again
    admin_every_s: float
    admin: tuple[str, ...]  # what an admin does in this run


ADMIN: Final = ("pause", "purge", "delete", "change", "redrive", "move_repair", "look", "bad")


def plan_of(seed: int) -> Plan:
    chance = random.Random(f"plan/{seed}")
    skew_kept = chance.random() < 0.85
    actions = [act for act in ADMIN if chance.random() < (0.3 if act in ("purge", "delete", "pause") else 0.6)]
    return Plan(
        nodes=chance.choice((1, 2, 2, 3, 4)),
        producers=chance.choice((1, 2, 3)),
        consumers=chance.choice((2, 3, 4)),
        turbulent_s=chance.uniform(*TURBULENT_S),
        queues=_queues(chance),
        faults=_faults(chance, skew_kept),
        skew_kept=skew_kept,
        node_trouble_every_s=chance.choice((0.0, chance.uniform(4.0, 20.0))),
        admin_every_s=chance.uniform(1.5, 6.0) if actions else 0.0,
        admin=tuple(actions),
    )


def _queues(chance: random.Random) -> dict[str, dict[str, Any]]:
    queues: dict[str, dict[str, Any]] = {}
    names = ["a"] if chance.random() < 0.7 else ["a", "b"]
    if chance.random() < 0.5:
        queues["dead"] = _options(chance)
    for name in names:
        options = _options(chance)
        if "dead" in queues:
            options |= {"dead_letters": "dead", "delivery_limit": chance.choice((1, 2, 3))}
        if chance.random() < 0.08:
            options["ttl_s"] = chance.uniform(2.0, 10.0)
        queues[name] = options
    return queues


def _options(chance: random.Random) -> dict[str, Any]:
    return {
        "bucket_size": chance.choice((10, 10, 20, 50)),
        "repair_after_s": chance.choice((1.0, 2.0, 3.0)),
        "visibility_s": chance.uniform(1.0, MOST_VISIBILITY_S),
        "nack_delay_s": chance.choice((0.0, 0.0, 0.5)),
        "nack_delay_most_s": MOST_DELAY_S,
        "body_limit": 1_000,
    }


def _faults(chance: random.Random, skew_kept: bool) -> Faults:
    if chance.random() < 0.1:
        return Faults.none()

    rough = 3.0 if chance.random() < 0.25 else 1.0  # so many requests go wrong that puts are often late

    def upto(most: float) -> float:
        return chance.random() * most * rough if chance.random() < 0.6 else 0.0

    def every(least_s: float, most_s: float) -> float:
        return chance.uniform(least_s, most_s) if chance.random() < 0.5 else 0.0

    return Faults(
        lost_answer=upto(0.05),
        lost_request=upto(0.03),
        late_write=upto(0.05),
        late_cas=upto(0.03),
        stall_cas=upto(0.02),
        limbo_cas=upto(0.02),
        refused=upto(0.03),
        slow=upto(0.02),
        split_read=upto(0.05),
        late_least_s=0.3,
        late_most_s=40.0,
        page_rows=chance.choice((3, 5_000, 5_000)),
        skew_s=MAX_SKEW_S / 2 * chance.random() if skew_kept else chance.uniform(1.0, 5.0),
        drift=chance.choice((0.0, 0.01, 0.03)),
        step_every_s=every(10.0, 30.0),
        crash_every_s=every(10.0, 30.0),
        crash_most_s=8.0,
        crash_at_once=chance.choice((1, 1, 1, 2)),
        cut_every_s=every(8.0, 25.0),
        cut_most_s=6.0,
        pause_every_s=every(8.0, 25.0),
        pause_most_s=3.0,
        client_pause_every_s=every(8.0, 25.0),
        client_pause_most_s=6.0,
        hint_lost=upto(0.1),
        hint_late=upto(0.1),
        coordinator_stamps=chance.random() < 0.2,
    )
