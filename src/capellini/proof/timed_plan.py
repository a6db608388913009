"""What a simulated run of timed queues is like, drawn from its seed."""

from __future__ import annotations

import random
from typing import Any, Final

from capellini.proof.plan import MOST_DELAY_S, MOST_VISIBILITY_S, TURBULENT_S, Plan, _faults

ADMIN: Final = (
    "pause", "purge", "delete", "change", "reshard", "reshard", "look", "bad", "cancel", "cancel", "cancel", "move",
    "move", "move", "halt",
)  # fmt: skip
RARE: Final = ("purge", "delete", "pause", "halt")


def timed_plan_of(seed: int) -> Plan:
    chance = random.Random(f"timed/{seed}")
    skew_kept = chance.random() < 0.85
    actions = [act for act in ADMIN if chance.random() < (0.2 if act in RARE else 0.6)]
    return Plan(
        nodes=chance.choice((1, 2, 2, 3, 3)),
        producers=chance.choice((1, 2, 2)),
        consumers=chance.choice((1, 2, 3)),
        turbulent_s=chance.uniform(*TURBULENT_S),
        queues=_queues(chance),
        faults=_faults(chance, skew_kept),
        skew_kept=skew_kept,
        node_trouble_every_s=chance.choice((0.0, chance.uniform(4.0, 15.0), chance.uniform(4.0, 15.0))),
        admin_every_s=chance.uniform(0.5, 3.0) if actions else 0.0,
        admin=tuple(actions),
    )


def _queues(chance: random.Random) -> dict[str, dict[str, Any]]:
    queues: dict[str, dict[str, Any]] = {}
    if chance.random() < 0.4:
        queues["dead"] = _options(chance)
    options = _options(chance)
    if "dead" in queues:
        options |= {"dead_letters": "dead", "delivery_limit": chance.choice((1, 2, 3))}
    queues["a"] = options
    return queues


def _options(chance: random.Random) -> dict[str, Any]:
    return {
        "granularity": chance.choice(("minute", "minute", "hour", "day")),
        "shards": chance.choice((1, 1, 2, 3)),
        "visibility_s": chance.uniform(1.0, MOST_VISIBILITY_S),
        "nack_delay_s": chance.choice((0.0, 0.0, 0.5)),
        "nack_delay_most_s": MOST_DELAY_S,
        "body_limit": 1_000,
    }
