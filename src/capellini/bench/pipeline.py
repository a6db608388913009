"""The pipeline on Spark: how fast queues are read and written beside bare Arrow, and what an audit costs.

    pipeline.source_*, sink_per_s       a log queue of a node on a folder, local[2]      (pipeline_rates.py)
    pipeline.cassandra_source_vs_bare   the same in Cassandra, beside the bare driver    (pipeline_cassandra.py)
    pipeline.audit_*                    generated journals of 2 and 20 million events    (pipeline_audit.py)

Each part has a Spark of its own, in a process of its own: what one leaves behind in memory is not the next one's.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from capellini.bench.figures import Figure, names, unmeasured
from capellini.bench.parts import Part, measured

PARTS: Final = {
    "capellini.bench.pipeline_rates": ("pipeline.source_", "pipeline.sink_"),
    "capellini.bench.pipeline_cassandra": ("pipeline.cassandra_",),
    "capellini.bench.pipeline_audit": ("pipeline.audit_",),
}
WITHIN_S: Final = 3_600.0


async def run(quick: bool, only: str | None) -> AsyncIterator[Figure]:
    """All figures of the pipeline that `only` picks."""
    wanted = names("pipeline", only)
    for module, prefixes in PARTS.items():
        if mine := [name for name in wanted if name.startswith(prefixes)]:
            for figure in await measured(in_a_process(module), quick, mine):
                yield figure


def in_a_process(module: str) -> Part:
    return lambda quick, wanted: asyncio.to_thread(_in_a_process, module, quick, wanted)


def _in_a_process(module: str, quick: bool, wanted: list[str]) -> list[Figure]:
    command = [sys.executable, "-m", module, "quick" if quick else "full", *wanted]
    done = subprocess.run(command, capture_output=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return [unmeasured(name, lines[-1][:300] if lines else f"it ended with {done.returncode}") for name in wanted]
    return [msgspec.json.decode(line, type=Figure) for line in done.stdout.splitlines() if line.startswith(b"{")]
