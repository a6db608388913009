"""A suite is measured part by part. Each figure is told as soon as it is there, so that a long run that is ended has
shown what it had; a part that fails says so in its figures: the others are worth having all the same."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from capellini.bench.figures import Figure, names, unmeasured

Part = Callable[[bool, list[str]], Awaitable[list[Figure]]]


async def in_turn(
    suite: str, parts: Mapping[str, tuple[str, ...]], quick: bool, only: str | None
) -> AsyncIterator[Figure]:
    """`parts`: by module, what the figures begin with that its `run` measures. A module is imported when it is needed:
    each brings along drivers that the others do not need."""
    wanted = names(suite, only)
    for module, prefixes in parts.items():
        if mine := [name for name in wanted if name.startswith(prefixes)]:
            for figure in await measured(importlib.import_module(module).run, quick, mine):
                yield figure


async def measured(part: Part, quick: bool, wanted: list[str]) -> list[Figure]:
    """One for each name that is wanted, in that order."""
    try:
        found = {figure.figure: figure for figure in await part(quick, wanted)}
    except Exception as error:  # of any kind: the reason is printed with the figure
        return [unmeasured(name, f"{type(error).__name__}: {error}") for name in wanted]
    return [found.get(name) or unmeasured(name, "its part said nothing of it") for name in wanted]
