"""Memory for large pieces: kept between them, not fetched anew for each.

What is freed at the end of the heap goes back to the kernel once it is more than a threshold, and comes again as empty
pages, one fault each: where pages of some megabytes are read one after the other, that takes a tenth of the time. The C
library of GNU raises the threshold to twice the largest piece that it ever freed, up to 32 MB: so one is freed.
"""

from __future__ import annotations

from typing import Final

KEPT_BYTES: Final = 16 * 1024 * 1024  # twice the largest page that is asked for; twice that may stay unused


def keep_memory() -> None:
    """Of this process, from now on. It does nothing where another C library is used."""
    bytes(KEPT_BYTES)
