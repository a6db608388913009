"""Names of extents: they sort by opening, and say who their one writer is.

    1763324049123-3a0-ams-1f00c2a90b17      opened (ms since 1970), salt, number, node, incarnation
    0000000000007-3a0-ams-1f00c2a90b17      of a chain: its place in the chain instead

The name holds the writer's node and incarnation, and each incarnation numbers its extents: so nobody else ever writes
into it, and no name comes twice. The salt says nothing; it is what placement varies until the replicas of the name
suit.
"""

from __future__ import annotations

import re
from typing import Final

from capellini.model.errors import Invalid

DIGITS: Final = 13  # ms since 1970 until the year 2286
SALTS: Final = 256
NAME: Final = re.compile(r"(\d{13})-([0-9a-f]{2})(\d+)-(.+)-([0-9a-f]+)", re.ASCII)


def make(opened: int, salt: int, number: int, node: str, incarnation: str) -> str:
    """`opened`: ms since 1970, or the place in the chain. `number`: of this incarnation's extents."""
    return f"{opened:0{DIGITS}d}-{salt:02x}{number}-{node}-{incarnation}"


def salted(name: str, salt: int) -> str:
    """The same name with another salt. Raises Invalid."""
    _parts(name)
    return f"{name[: DIGITS + 1]}{salt:02x}{name[DIGITS + 3 :]}"


def _parts(name: str) -> tuple[str, ...]:
    found = NAME.fullmatch(name)
    if found is None:
        raise Invalid(f"{name[:120]!r} is not the name of an extent")
    return found.groups()


def writer_of(name: str) -> tuple[str, str]:
    """Node and incarnation. Raises Invalid."""
    parts = _parts(name)
    return parts[3], parts[4]


def opened_of(name: str) -> int:
    """When it was opened, in ms since 1970; of a chain, its place in it. Raises Invalid."""
    return int(_parts(name)[0])
