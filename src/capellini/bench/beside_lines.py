"""What is done with every queue, as a table: the lines of the comparison, and what each needs of a queue.

    shape     c1    one client, one message a call              b10   32 clients, batches of 10
              c32   32 clients, one message a call              b100  32 clients, batches of 100
    work      apart    put for a time, then get and ack all of it: two measurements
              mixed    half of the clients put for a time while the others get and ack; a single client does all in turn
              fanout   each message goes to three groups
              pace     single messages at a steady rate: how late each is delivered
              delayed  the same with a delay of some seconds: how late after it is due
              backlog  fill, kill the server with all inside, start it again, get one message, get and ack the rest

Figures name the lines that they need, so that only those are run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from capellini.bench.figures import BARS
from capellini.bench.peers.peer import Server


class Shape(msgspec.Struct, frozen=True):
    name: str
    says: str
    batch: int
    processes: int  # half of them put in mixed work; one does everything
    workers: int  # in each


C1: Final = Shape("c1", "single messages, 1 client", 1, 1, 1)
C32: Final = Shape("c32", "single messages, 32 clients", 1, 8, 4)
B10: Final = Shape("b10", "batches of 10, 32 clients", 10, 8, 4)
B100: Final = Shape("b100", "batches of 100, 32 clients", 100, 8, 4)
SHAPES: Final = (C1, C32, B10, B100)
BODIES: Final[Mapping[str, int]] = {"100B": 100, "1kB": 1_000, "16kB": 16_000}
GROUPS: Final = ("first", "second", "third")
OURS: Final = "Capellini"
OUR_LOG: Final = "Capellini log"
OUR_FOLDER: Final = "Capellini (embedded)"
ALL_OURS: Final = (OURS, OUR_LOG, OUR_FOLDER)


class Line(msgspec.Struct, frozen=True):
    name: str
    work: str  # apart, mixed, fanout, pace, delayed, backlog
    shape: Shape
    body_bytes: int = 100
    often: int = 3  # repeats at full size

    @property
    def needs(self) -> str:
        """What a queue may lack."""
        return {"fanout": "groups", "delayed": "delays", "backlog": "backlog"}.get(self.work, "")


def _lines() -> list[Line]:
    found = []
    for body, size in BODIES.items():
        for shape in SHAPES:
            if size > 100 and shape not in (C32, B100):
                continue  # the ends; what lies between is between
            often = 3 if size == 100 else 2 if shape is B100 else 1
            found += [Line(f"{work}_{shape.name}_{body}", work, shape, size, often) for work in ("apart", "mixed")]
    found.append(Line("fanout3", "fanout", B100))
    found.append(Line("pace", "pace", C1, often=2))
    found.append(Line("delayed", "delayed", C1, often=2))
    found.append(Line("backlog", "backlog", B100, often=1))
    return found


LINES: Final[Mapping[str, Line]] = {line.name: line for line in _lines()}
MIXED_B100: Final = tuple(f"mixed_b100_{body}" for body in BODIES)
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {  # by figure
    "peers.mixed_b100_vs_best": MIXED_B100,
    "peers.fanout3_vs_best": ("fanout3",),
    "peers.backlog_1M_vs_best": ("backlog",),
    "peers.single_c1_vs_best": ("mixed_c1_100B",),
    "peers.single_c32_vs_best": ("mixed_c32_100B",),
    "peers.cpu_b100_vs_redis": ("mixed_b100_100B",),
    "peers.recovery_1M_s": ("backlog",),
}
NOT_QUICK: Final = {"mixed_b100_1kB"}  # between the other two
ALONE: Final[Mapping[str, tuple[str, ...]]] = {  # figures that need some queues only
    "peers.cpu_b100_vs_redis": (OURS, "Redis Streams"),
    "peers.recovery_1M_s": (OURS, OUR_LOG),
}


def chosen(wanted: Sequence[str], quick: bool) -> list[Line]:
    """The lines for some figures: all there are when all figures are wanted at full size."""
    if not quick and set(wanted) == {name for name in BARS if name.startswith("peers.")}:
        return list(LINES.values())
    needed = {name for figure in wanted for name in NEEDED[figure]} - (NOT_QUICK if quick else set())
    return [line for line in LINES.values() if line.name in needed]


def queues_for(wanted: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The queues that some figures need."""
    needed = {label for figure in wanted for label in ALONE.get(figure, labels)}
    return [label for label in labels if label in needed]


def skipped(server: type[Server] | Server, line: Line) -> str | None:
    """Why this queue has no part in this line; None: it has."""
    if server.label == OUR_LOG:
        return None if line.work in ("fanout", "backlog") or line.shape is B100 else "taken for batches only"
    if server.label == OUR_FOLDER and (line.shape is not C1 or line.work not in ("apart", "mixed")):
        return "taken for one process: with several, one of them is a server"
    if server.label == OURS and line.work == "fanout":
        return "a log queue is for that"
    return server.lacks.get(line.needs) if line.needs else None
