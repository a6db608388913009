"""Following a message through the log: at debug one line per operation, saying where messages went. Never a body.

    put jobs/1: ids 0-9, bucket 0
    delivered jobs/1: ids 0-9, bucket 0, delivery 1
    acked jobs/1: ids 0-8, bucket 0, delivery 1
    dead jobs/1: ids 9, bucket 0 -> jobs-dead

All of this passes the events (queues/events.py), so that a sink there says it for every kind of queue. Where debug is
off there is no such sink, and nothing is paid for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from capellini.queues.events import Happened, Kind, Run, Who

log: Final = logging.getLogger("capellini.messages")
MOST_SHOWN: Final = 20  # runs or ids in a line: an operation has a thousand messages, mostly in one run
MOVES: Final = (Kind.DEAD, Kind.REPLAYED)  # their detail is the queue it went to

SizeOf = Callable[[str, int], int | None]  # the bucket size of a queue's generation; None: it has no buckets


class Following:
    """The sink that writes the log."""

    def __init__(self) -> None:
        self.size_of: SizeOf = lambda queue, generation: None

    def add(
        self,
        who: Who,
        number: int,
        at: float,
        kind: Kind,
        queue: str,
        generation: int,
        runs: Sequence[Run],
        version: int,
        detail: str,
        ids: Sequence[str],
    ) -> None:
        if kind is not Kind.CLOSED:
            event = Happened(*who, number, at, kind, queue, generation, tuple(runs), version, detail, tuple(ids))
            log.debug("%s", told(event, self.size_of(queue, generation)))

    def flush(self) -> None:
        return None

    def close(self) -> None:
        return None


def following() -> Following | None:
    """None where nobody reads it."""
    return Following() if log.isEnabledFor(logging.DEBUG) else None


def told(event: Happened, bucket_size: int | None = None) -> str:
    """An event in one line."""
    parts = [f"ids {_shown([*map(_run, event.runs), *event.ids])}"]
    if bucket_size and event.runs:
        buckets = {(first // bucket_size, (first + count - 1) // bucket_size) for first, count in event.runs}
        parts.append(f"bucket {_shown([_run((low, high - low + 1)) for low, high in sorted(buckets)])}")
    if event.version:
        parts.append(f"delivery {event.version}")
    detail = "" if not event.detail else f" -> {event.detail}" if event.kind in MOVES else f" ({event.detail})"
    return f"{event.kind.value} {event.queue}/{event.generation}: {', '.join(parts)}{detail}"


def _run(run: tuple[int, int]) -> str:
    first, count = run
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _shown(named: list[str]) -> str:
    more = f" and {len(named) - MOST_SHOWN} more" if len(named) > MOST_SHOWN else ""
    return " ".join(named[:MOST_SHOWN]) + more
