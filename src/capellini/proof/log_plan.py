"""What a simulated run of log queues is like, drawn from its seed.

A third of the runs have two data centres with two replicas and one, which get cut from each other. There a queue of
mode `ap` is changed by nobody: its groups are read as far as is known in each data centre, so a seek or a purge takes
effect where it is heard of; and producers stay in one data centre, within which keys and sequences hold.
"""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from capellini.proof.plan import MOST_DELAY_S, MOST_VISIBILITY_S, Plan, _faults

ADMIN: Final = (
    "pause", "purge", "delete", "change", "look", "bad", "seek", "seek", "regroup", "change_group", "purge_dead",
    "merge_dead", "scale",
)  # fmt: skip
RARE: Final = ("purge", "delete", "pause", "purge_dead", "merge_dead")
APART: Final = ("look", "bad", "scale")  # what an admin does in runs of mode ap with data centres
TURBULENT_S: Final = (8.0, 18.0)
KEPT_S: Final = 3_600.0  # of a queue whose finished extents outlive the run
COLORS: Final = ("red", "blue")  # what filters look for
DCS: Final = {"dc1": 2, "dc2": 1}  # replicas


class GroupPlan(msgspec.Struct, frozen=True):
    start: str = "earliest"
    options: dict[str, Any] = {}


class LogPlan(Plan, frozen=True):
    groups: dict[str, GroupPlan] = msgspec.field(default_factory=dict)  # of each queue
    extent_bytes: int = 1_500  # where extents are sealed: far below what options allow, so that a run sees many
    window: int = 1  # chunks that a producer with a sequence has under way
    calm_s: float = 4.0  # in which promise 10 is looked at; waiting is what a run costs most, so not in all of them
    delays: bool = False  # some puts are delayed
    singly: bool = False  # consumers take single messages; else parcels, as streams do
    stalls: float = 0.0  # of the puts: their node stops in the middle of them for longer than its lease
    dcs: dict[str, int] = msgspec.field(default_factory=dict)  # data centres, and their replicas
    cut_dcs_every_s: float = 0.0


def log_plan_of(seed: int) -> LogPlan:
    chance = random.Random(f"log/{seed}")
    skew_kept = chance.random() < 0.85
    actions = [act for act in ADMIN if chance.random() < (0.2 if act in RARE else 0.5)]
    options = _options(chance)
    dcs = DCS if chance.random() < 0.33 else {}
    apart = bool(dcs) and options["mode"] == "ap"
    if apart:
        actions = [act for act in actions if act in APART]
    return LogPlan(
        nodes=chance.choice((2, 2, 3)) if dcs else chance.choice((1, 2, 2, 3, 3)),
        producers=chance.choice((2, 2, 3)),
        consumers=chance.choice((2, 3, 4)),
        turbulent_s=chance.uniform(*TURBULENT_S),
        queues={"a": options},
        faults=_faults(chance, skew_kept),
        skew_kept=skew_kept,
        node_trouble_every_s=chance.choice((0.0, chance.uniform(3.0, 12.0), chance.uniform(3.0, 12.0))),
        admin_every_s=chance.uniform(0.7, 4.0) if actions else 0.0,
        admin=tuple(actions),
        groups=_groups(chance),
        extent_bytes=chance.choice((400, 1_500, 1_500, 1 << 26)),
        window=chance.choice((1, 2, 4)),
        calm_s=chance.choice((0.0, 0.0, 4.0)),
        delays=chance.random() < 0.3 and not apart,
        singly=chance.random() < 0.5,
        stalls=chance.choice((0.0, 0.0, 0.1)),
        dcs=dcs,
        cut_dcs_every_s=chance.uniform(3.0, 9.0) if dcs and chance.random() < 0.8 else 0.0,
    )


def _options(chance: random.Random) -> dict[str, Any]:
    mode = chance.choice(("ap", "cp"))
    return {
        "mode": mode,
        "ordered": chance.choice(("", "group", "total")) if mode == "cp" else "",
        "order_by": "color",
        "level": chance.choice(("quorum", "quorum", "all")),
        "consumed_s": chance.choice((0.0, 2.0, KEPT_S)),
        "retention_s": KEPT_S,
        "max_bytes": chance.choice((0,) * 9 + (20_000,)),
        "visibility_s": chance.uniform(1.0, MOST_VISIBILITY_S),
        "nack_delay_s": chance.choice((0.0, 0.0, 0.5)),
        "nack_delay_most_s": MOST_DELAY_S,
        "body_limit": 1_000,
    }


def _groups(chance: random.Random) -> dict[str, GroupPlan]:
    groups = {"g": GroupPlan(options=_limit(chance))}
    if chance.random() < 0.6:
        options = _limit(chance)
        if chance.random() < 0.3:
            options["filter"] = {"color": [COLORS[0]]}
        if chance.random() < 0.3:
            options["delay_s"] = chance.uniform(0.1, 2.0)
        groups["h"] = GroupPlan(chance.choice(("earliest", "latest")), options)
    return groups


def _limit(chance: random.Random) -> dict[str, Any]:
    return {"delivery_limit": chance.choice((1, 2, 3))} if chance.random() < 0.35 else {}
