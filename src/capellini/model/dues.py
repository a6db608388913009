"""When a message of a timed queue is due: a time with a zone, seconds since 1970, or a delay from now.

A due in the past means at once. One that lies absurdly far ahead is refused: it is most often milliseconds where
seconds are meant.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

from capellini.model.errors import Invalid
from capellini.model.message import Entry, NewMessage, check_message
from capellini.model.timed import MAX_DUE_S, Scheduled

Due = datetime | float
_ROUNDING_MS: Final = 0.001  # what a number of seconds is wrong by at most, having been milliseconds once


def seconds_of(due: Due) -> float:
    """Seconds since 1970. Raises Invalid."""
    if isinstance(due, datetime):
        if due.tzinfo is None:
            raise Invalid(f"due {due.isoformat()} has no time zone: say which, as in {due.isoformat()}Z")
        return due.timestamp()
    if not math.isfinite(due):
        raise Invalid(f"due is a time, not {due!r}")
    return float(due)


def due_ms_of(due: Due, now_s: float) -> int:
    """Raises Invalid when it is no time, or too far ahead."""
    seconds = seconds_of(due)
    if seconds > now_s + MAX_DUE_S:
        raise Invalid(f"due is at most {MAX_DUE_S / 31_536_000:g} years ahead, in seconds since 1970; not {due!s}")
    return math.ceil(max(0.0, seconds) * 1000 - _ROUNDING_MS)  # up: never early


def due_of(text: str) -> float:
    """A time as people and headers write it: RFC 3339, or seconds since 1970. Raises Invalid."""
    try:
        return seconds_of(float(text))
    except ValueError:
        pass  # not a number: a date, then
    try:
        return seconds_of(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise Invalid(f"{text[:60]!r} is no time: use 2030-01-31T08:00:00Z, or seconds since 1970") from None


def later(due: Due | timedelta, now_s: float) -> Due:
    """A time span counts from now."""
    return now_s + due.total_seconds() if isinstance(due, timedelta) else due


def text_of(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def scheduled(message: NewMessage, now_s: float, body_limit: int) -> Scheduled:
    """The message as a timed queue takes it. Raises Invalid or TooLarge, saying what is wrong with it."""
    due = message.due
    check_message(NewMessage(message.body, message.attributes, key=message.key), body_limit)
    if due is None:
        if not 0 <= message.delay_s <= MAX_DUE_S:
            raise Invalid(f"delay_s goes from 0 to {MAX_DUE_S:.15g}, not {message.delay_s!r}")
        due = now_s + message.delay_s
    elif message.delay_s:
        raise Invalid("a message has either due or delay_s")
    return Scheduled(Entry(message.body, message.attributes or None), due_ms_of(due, now_s), message.key)
