"""What all sketches share: how their bytes are opened. Bytes that are no sketch of the kind are named as damaged, never
taken for an empty one."""

from __future__ import annotations

from typing import Any

from capellini.counters.states.interface import Damaged, check_version


def opened(form: Any, data: bytes, version: int, newest: int) -> Any:
    """A sketch of a DataSketches class, from bytes that `encode` of this or an earlier version made. Raises Damaged."""
    check_version(version, newest)
    try:
        return form.deserialize(data)
    except (ValueError, IndexError, RuntimeError) as error:  # what DataSketches raises, by where the bytes are wrong
        raise Damaged(str(error)) from None
