"""The one table of queue options: default, least, most, and whether it can change later. `docs/settings.md` and OpenAPI
are made from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from capellini.model.errors import Conflict, Invalid

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # fits a path segment, a file name and a Cassandra key
NAME_RULE: Final = "1 to 100 of a-z, A-Z, 0-9, '_', '-' and '.', beginning with a letter or digit"
INTERNAL: Final = "capellini."  # what the names of queues begin with that nodes make for themselves
JOURNAL: Final = f"{INTERNAL}journal"
BODIES: Final = f"{INTERNAL}bodies"  # the journal's second queue: messages themselves, see node/bodies.py
ON: Final = "on"
OFF: Final = "off"
WITH_BODIES: Final = "bodies"


class Option(msgspec.Struct, frozen=True):
    name: str
    type: type
    default: int | float | str
    least: float | None
    most: float | None
    changeable: bool
    says: str


WORK: Final = (
    Option("bucket_size", int, 1_000, 10, 10_000, False, "messages per bucket, the unit in which space is given back"),
    Option(
        "visibility_s",
        float,
        30.0,
        0.1,
        43_200,
        True,
        "how long a delivered message stays hidden unless acked, nacked or extended",
    ),
    Option(
        "delivery_limit",
        int,
        0,
        0,
        1_000,
        True,
        "deliveries before a message goes to dead letters; 0: no limit; needs dead_letters",
    ),
    Option(
        "dead_letters", str, "", None, None, True, "the queue that receives what was delivered too often; empty: none"
    ),
    Option(
        "nack_delay_s",
        float,
        0.0,
        0,
        43_200,
        True,
        "how long a nacked message waits, doubled with each delivery, unless the nack says otherwise",
    ),
    Option("nack_delay_most_s", float, 300.0, 0, 43_200, True, "where that doubling ends"),
    Option(
        "repair_after_s",
        float,
        10.0,
        1,
        3_600,
        False,
        "a put is confirmed within half of this or under a new id; gaps are closed after it",
    ),
    Option(
        "ttl_s",
        float,
        0.0,
        0,
        31_536_000,
        True,
        "a message older than this is dropped instead of delivered, so delays must be shorter; 0: never",
    ),
    Option("body_limit", int, 262_144, 1, 4_194_304, True, "the largest body, in bytes"),
    Option("window_s", float, 3_600.0, 60, 604_800, True, "how long an idempotency key is remembered"),
    Option(
        "journal",
        str,
        ON,
        None,
        None,
        True,
        "on: what happens to its messages is told to the journal; off: not; bodies (work, timed): each message, too",
    ),
)
_SHARED: Final = frozenset(
    (
        "visibility_s", "delivery_limit", "dead_letters", "nack_delay_s", "nack_delay_most_s", "body_limit", "window_s",
        "journal",
    )
)  # fmt: skip
TIMED: Final = (
    Option("granularity", str, "hour", None, None, False, "the time that one partition holds: minute, hour or day"),
    Option("shards", int, 4, 1, 256, True, "partitions side by side, each worked by one node; more for higher rates"),
    Option(
        "retention_s",
        float,
        2_592_000.0,
        86_400,
        31_536_000,
        True,
        "how long after its due a message that nobody took is kept at least",
    ),
    *(option for option in WORK if option.name in _SHARED),
)
LOG: Final = (
    Option("mode", str, "ap", None, None, False, "ap: both sides of a cut go on; cp: a chain of extents, in order"),
    Option(
        "ordered", str, "", None, None, False, "cp only: total, or group (by the attribute order_by); empty: no order"
    ),
    Option("order_by", str, "group", None, None, False, "the attribute that names a message's group, if ordered"),
    Option("level", str, "quorum", None, None, True, "replicas that confirm a put: quorum or all (Cassandra only)"),
    Option(
        "retention_s", float, 604_800.0, 60, 31_536_000, True, "how long messages are kept that no group has consumed"
    ),
    Option(
        "consumed_s", float, 3_600.0, 0, 31_536_000, True, "how long messages are kept that all groups have consumed"
    ),
    Option("max_bytes", int, 0, 0, 1 << 50, True, "puts are refused while the queue holds more; 0: no limit"),
    Option(
        "extent_bytes", int, 67_108_864, 65_536, 1 << 30, True, "where an extent is sealed: the unit in which space "
        "is given back"
    ),
    Option("extents_most", int, 8, 1, 256, True, "extents that a node may have open at a time, as the rate asks"),
    *(option for option in WORK if option.name in _SHARED - {"dead_letters", "window_s"}),
)  # fmt: skip
MODES: Final = ("ap", "cp")
ORDERS: Final = ("", "group", "total")
LEVELS: Final = ("quorum", "all")
GRANULARITIES: Final = ("minute", "hour", "day")
JOURNALS: Final = (ON, OFF, WITH_BODIES)
KINDS: Final[dict[str, tuple[Option, ...]]] = {"work": WORK, "timed": TIMED, "log": LOG}


class WorkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bucket_size: int = 1_000
    visibility_s: float = 30.0
    delivery_limit: int = 0
    dead_letters: str = ""
    nack_delay_s: float = 0.0
    nack_delay_most_s: float = 300.0
    repair_after_s: float = 10.0
    ttl_s: float = 0.0
    body_limit: int = 262_144
    window_s: float = 3_600.0
    journal: str = ON


class TimedOptions(WorkOptions, frozen=True, forbid_unknown_fields=True):
    """What timed queues share with work queues has the same names. There are no buckets, and no ids to repair."""

    bucket_size: int = 0
    granularity: str = "hour"
    shards: int = 4
    retention_s: float = 2_592_000.0


class LogOptions(WorkOptions, frozen=True, forbid_unknown_fields=True):
    """Visibility, delivery limit and nack delays are what its groups have unless told otherwise."""

    bucket_size: int = 0
    mode: str = "ap"
    ordered: str = ""
    order_by: str = "group"
    level: str = "quorum"
    retention_s: float = 604_800.0
    consumed_s: float = 3_600.0
    max_bytes: int = 0
    extent_bytes: int = 67_108_864
    extents_most: int = 8


OPTIONS: Final[dict[str, type[WorkOptions]]] = {"work": WorkOptions, "timed": TimedOptions, "log": LogOptions}
CHOICES: Final = {"granularity": GRANULARITIES, "mode": MODES, "ordered": ORDERS, "level": LEVELS, "journal": JOURNALS}


def given_options(kind: str, options: WorkOptions) -> dict[str, Any]:
    """All options that this kind has, with their values."""
    return {option.name: getattr(options, option.name) for option in KINDS[kind]}


def check_name(name: str) -> str:
    if not isinstance(name, str):
        raise Invalid(f"a queue's name is text, not {type(name).__name__}")
    if not NAME.fullmatch(name):
        raise Invalid(f"{name[:120]!r} is not a queue name: use {NAME_RULE}")
    return name


def is_internal(name: str) -> bool:
    """Of a queue that nodes have made for themselves."""
    return name.startswith(INTERNAL)


def check_own_name(name: str) -> str:
    """For a queue that a caller wants to make or put into: not one of the nodes'. Raises Invalid."""
    if is_internal(check_name(name)):
        raise Invalid(f"{name} is a queue of the nodes' own, as all whose names begin with {INTERNAL!r}: use another")
    return name


def options_of(kind: str, given: Mapping[str, Any]) -> WorkOptions:
    """Checked options, defaults filled in. Raises Invalid naming the option, its range and what was given."""
    if kind not in KINDS:
        raise Invalid(f"{kind!r} is not a kind of queue: there are {', '.join(KINDS)}")
    table = {option.name: option for option in KINDS[kind]}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in table:
            raise Invalid(f"{name!r} is not an option of {kind} queues: there are {', '.join(table)}")
        values[name] = _value(table[name], value)
    if values.get("dead_letters"):
        check_name(values["dead_letters"])
    for name, choices in CHOICES.items():
        if name in values and values[name] not in choices:
            raise Invalid(
                f"{name} is one of {', '.join(choice or 'empty' for choice in choices)}, not {values[name]!r}"
            )
    options = OPTIONS[kind](**values)
    if isinstance(options, LogOptions):
        if options.ordered and options.mode != "cp":
            raise Invalid("ordered needs mode cp: extents side by side have no order")
        if options.ordered == "group" and not options.order_by:
            raise Invalid("ordered by group needs order_by: name the attribute that says which group a message is of")
        if options.journal == WITH_BODIES:
            raise Invalid("journal is on or off for a log queue: it keeps its messages itself")
    elif options.delivery_limit and not options.dead_letters:
        raise Invalid("delivery_limit needs dead_letters: name the queue that receives what was delivered too often")
    return options


def _value(option: Option, value: Any) -> int | float | str:
    good = (
        isinstance(value, str) if option.type is str else isinstance(value, int | float) and not isinstance(value, bool)
    )
    if good and option.type is int:
        good = isinstance(value, int) or value.is_integer()
    if not good:
        raise Invalid(f"{option.name} takes {_NOUN[option.type]}, not {value!r}")
    if option.type is str:
        return str(value)
    if not (option.least is None or option.most is None or option.least <= value <= option.most):  # also refuses nan
        raise Invalid(f"{option.name} goes from {option.least:.15g} to {option.most:.15g}, not {value!r}")
    return option.type(value)  # type: ignore[no-any-return]


_NOUN: Final = {int: "a whole number", float: "a number", str: "text"}


def check_change(kind: str, before: WorkOptions, change: Mapping[str, Any]) -> WorkOptions:
    """The options after `change`. Raises Conflict for what cannot change once a queue exists."""
    after = options_of(kind, {**given_options(kind, before), **change})
    for option in KINDS[kind]:
        if not option.changeable and getattr(before, option.name) != getattr(after, option.name):
            raise Conflict(
                f"{option.name} of an existing queue cannot change: create another queue, or delete this one first"
            )
    return after
