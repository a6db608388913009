"""Positions, ids and time parts: where a message of a timed queue lies.

    position = time uuid:   time of the place (60 bits, 100 ns)  │ 2+14 bits chance │ shard 16 bits │ 32 bits chance
    id       = the position that was chosen first: it says the shard and the first place to look for the message
    part     = the readable time part that a position falls into (UTC):
               "2026 319 14 05" (year, day of the year, hour, minute), "2026 319 14" or "2026 319"

A message's position is its due, or later when the shard was read beyond its due already. Positions are compared by
their time alone; what shares a tick has no order that matters.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Final
from uuid import UUID

from capellini.model.errors import Invalid

LEAD_MS: Final = 30_000  # longer than any honest horizon is ahead of the clock: no message lies further behind its due
TICKS_PER_MS: Final = 10_000
TICKS_PER_S: Final = 10_000_000
UNIX_TICKS: Final = 0x01B21DD213814000  # 1970-01-01 on a time uuid's clock, which began in 1582
LEAST_LOW: Final = 0x8080808080808080  # stores compare the lower half as signed bytes
GREATEST_LOW: Final = 0xBF7F7F7F7F7F7F7F
LENGTH_S: Final = {"minute": 60, "hour": 3_600, "day": 86_400}
_FORM: Final = {"minute": "%Y %j %H %M", "hour": "%Y %j %H", "day": "%Y %j"}
_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)


def ticks_of_ms(ms: int) -> int:
    return ms * TICKS_PER_MS + UNIX_TICKS


def ms_of_ticks(ticks: int) -> int:
    return (ticks - UNIX_TICKS) // TICKS_PER_MS


def ticks_of(position: UUID) -> int:
    value = position.int
    return (value >> 64 & 0xFFF) << 48 | (value >> 80 & 0xFFFF) << 32 | value >> 96


def _uuid(ticks: int, low: int) -> UUID:
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | 1 << 12 | ticks >> 48 & 0xFFF
    return UUID(int=high << 64 | low)


def position_of(ticks: int, shard: int, random: random.Random) -> UUID:
    """A new place: no two are alike."""
    chance = random.getrandbits(46)
    low = 0b10 << 62 | (chance >> 32) << 48 | shard << 32 | chance & 0xFFFFFFFF
    return _uuid(ticks, low)


def shard_in(position: UUID) -> int:
    return position.int >> 32 & 0xFFFF


def before(ticks: int) -> UUID:
    """Stands before all positions of that tick."""
    return _uuid(ticks, LEAST_LOW)


def behind(ticks: int) -> UUID:
    """Stands after all positions of that tick."""
    return _uuid(ticks, GREATEST_LOW)


@lru_cache(maxsize=4_096)
def _part(number: int, granularity: str) -> str:
    return (_ZERO + timedelta(seconds=number * LENGTH_S[granularity])).strftime(_FORM[granularity])


def part_number(ticks: int, granularity: str) -> int:
    return (ticks - UNIX_TICKS) // (LENGTH_S[granularity] * TICKS_PER_S)


def part_of(ticks: int, granularity: str) -> str:
    """The readable time part. They sort as their times do."""
    return _part(part_number(ticks, granularity), granularity)


def parts_from(first_ticks: int, last_ticks: int, granularity: str) -> list[str]:
    """All parts from the one to the other."""
    numbers = range(part_number(first_ticks, granularity), part_number(last_ticks, granularity) + 1)
    return [_part(number, granularity) for number in numbers]


def shard_of(batch: bytes, part: str, shards: int) -> int:
    """The shard for what one put (known by a few bytes of chance) brings into one time part: hashed, so that shards are
    even whatever the dues are, and one shard for all of it, so that a batch is few partitions."""
    return int.from_bytes(blake2b(part.encode(), key=batch, digest_size=8).digest()) % shards


def id_text(id: UUID) -> str:
    return id.hex


def parse_id(text: str) -> UUID:
    """Raises Invalid when it cannot be the id of a timed message."""
    try:
        id = UUID(hex=text)
    except ValueError:
        raise Invalid(f"{text[:40]!r} is not a message id of a timed queue") from None
    if len(text) != 32 or id.int >> 76 & 0xF != 1 or id.int >> 62 & 0b11 != 0b10:
        raise Invalid(f"{text[:40]!r} is not a message id of a timed queue")
    return id
