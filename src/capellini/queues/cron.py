"""Cron expressions in time zones: which ticks lie between two moments. Pure.

The library behind it goes through the year as Debian's cron does, which settles what daylight saving leaves open:

    a fixed time in the hour that is missing     ticks once, right after the gap
    a fixed time in the hour that comes twice    ticks once, the first time
    every so many minutes, or every hour         go by the time that passes: no tick is left out, none comes twice

Ticks are milliseconds since 1970, so that whoever computes them, from whatever start, finds the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from capellini.model.errors import Invalid
from capellini.model.scheduling import MAX_CRON_CHARS, MAX_ZONE_CHARS


def zone_of(name: str) -> ZoneInfo:
    """Raises Invalid."""
    try:
        if len(name) <= MAX_ZONE_CHARS:
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; not a name; a folder of zones
        pass
    raise Invalid(f"{name[:MAX_ZONE_CHARS]!r} is not a time zone: use a name like Europe/Berlin, or UTC")


def check_cron(cron: str, zone: str) -> None:
    """Raises Invalid, saying what is wrong."""
    place = zone_of(zone)
    if len(cron) > MAX_CRON_CHARS:
        raise Invalid(f"a cron expression has at most {MAX_CRON_CHARS} characters, not {len(cron)}")
    try:
        next(CronSim(cron, datetime(2024, 1, 1, tzinfo=place)))
    except CronSimError as error:
        says = str(error)[:1].lower() + str(error)[1:]
        raise Invalid(
            f"{cron!r} is not a cron expression ({says}): use MINUTE HOUR DAY MONTH WEEKDAY, as in '0 8 * * MON-FRI'"
        ) from None
    except StopIteration:
        raise Invalid(f"{cron!r} never ticks") from None


def ticks(cron: str, zone: str, after_ms: int) -> Iterator[int]:
    """The ticks after that moment, without end (or until no more come). The expression was checked before."""
    start = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone_of(zone))
    last_ms = after_ms
    for tick in CronSim(cron, start):
        tick_ms = int(tick.timestamp()) * 1000
        if tick_ms > last_ms:  # a wall clock that goes back shows what has been, and two times can fall into one gap
            last_ms = tick_ms
            yield tick_ms


def ticks_between(cron: str, zone: str, after_ms: int, until_ms: int, most: int) -> list[int]:
    """Those after the first moment and not after the second, so many at most."""
    found: list[int] = []
    for tick_ms in ticks(cron, zone, after_ms):
        if tick_ms > until_ms or len(found) >= most:
            break
        found.append(tick_ms)
    return found
