"""The times that make collecting safe, per deployment, checked against each other.

    born ──────────── takes updates ────────────▶│◀─ last_s ─▶│◀──────── grace_s ────────▶│
                                               refuses     expires                  may be collected
                                                             └─ hint window ─▶ └ clocks ─▶

Whoever confirms an update does so before `expires` by its own clock; whoever collects does so `grace_s` after it by its
own. Between the two lie the time in which Cassandra may still bring late writes (hints) and the difference of their
clocks. All nodes of a deployment use the same times.
"""

from __future__ import annotations

from typing import Final

import msgspec

from capellini.model.errors import Invalid

PATIENCE_S: Final = 10.0  # how long a write is repeated before its mutator gives up
LEAST_LAST_S: Final = 2 * PATIENCE_S  # what was taken in the last moment is written by then, or has failed
MOST_S: Final = 10 * 365 * 86_400.0  # beyond, somebody mistook the unit


class Times(msgspec.Struct, frozen=True, kw_only=True):
    life_s: float = 86_400.0  # of a mutator
    last_s: float = 3_600.0  # with less left than this it takes no update
    grace_s: float = 86_400.0  # from expiry until a shard may be collected
    hint_window_s: float = 10_800.0  # Cassandra's max_hint_window
    max_skew_s: float = 7_200.0  # how far a clock may be from the true time

    @property
    def life_us(self) -> int:
        return int(self.life_s * 1e6)

    @property
    def last_us(self) -> int:
        return int(self.last_s * 1e6)

    @property
    def grace_us(self) -> int:
        return int(self.grace_s * 1e6)


def check_times(times: Times, prefix: str = "") -> Times:
    """Raises Invalid, saying which two do not go together. `prefix`: what their names begin with where they are set."""
    for name, seconds in msgspec.structs.asdict(times).items():
        if not 0 <= seconds <= MOST_S:  # also refuses nan
            raise Invalid(f"{prefix}{name} goes from 0 to ten years, not {seconds!r}")
    if times.last_s < LEAST_LAST_S:
        raise Invalid(
            f"{prefix}last_s is {times.last_s:g}: it must be {LEAST_LAST_S:g} or more, "
            "so that what was taken can still be written"
        )
    if times.life_s < 2 * times.last_s:
        raise Invalid(
            f"{prefix}life_s is {times.life_s:g}: "
            f"a mutator must live for at least twice {prefix}last_s ({times.last_s:g})"
        )
    least_s = times.hint_window_s + 2 * times.max_skew_s
    if times.grace_s < least_s:
        raise Invalid(
            f"{prefix}grace_s is {times.grace_s:g}: it must be at least {least_s:g}, "
            f"the hint window of the store (max_hint_window, {times.hint_window_s:g}) plus twice {prefix}max_skew_s "
            f"({times.max_skew_s:g}), so that late writes have landed before shards are collected"
        )
    return times
