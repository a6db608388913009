"""What a verb needs beyond what is always installed, and what is said where that is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import click

EXTRAS: Final = {"pipeline": "spark", "bench peers": "bench", "bench pipeline": "spark"}


@contextlib.contextmanager
def importing(verb: str) -> Iterator[None]:
    """Says what to install. A module of ours that is not there is no matter of installing: it is raised as it is."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "capellini").partition(".")[0] == "capellini":
            raise
        package = f"capellini[{EXTRAS[verb]}]" if verb in EXTRAS else "capellini, and all that it needs"
        raise click.ClickException(f"{verb} needs {error.name}, which is missing: install {package}") from error
