"""What a file of events holds, as whoever reads such files sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from capellini.queues.events import Happened


def read_events(path: Path) -> Iterator[Happened]:
    """A line that was cut when its writer died is no event: its number will be missing."""
    decode = msgspec.json.Decoder(Happened).decode
    with path.open("rb") as file:
        for line in file:
            try:
                yield decode(line)
            except msgspec.DecodeError:
                continue
