"""The one interface of a counter's state.

    update ──check──▶ plain form ──apply──▶ state ──encode──▶ bytes of a shard
                                              ▲                      │
                              merge (any order, any grouping) ◀──decode (with the version it was written by)

A counter is the merge of one state per mutator. So `merge` must not care for order or grouping; each mutator's state
goes in once, which the reader sees to (shards are named by their mutator, and what the tally has is left out).
Where a state is `idempotent`, even merging the same one twice changes nothing.

To add one of your own: subclass State in a file, name it in the entry-point group `capellini.counter_states`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Self

import msgspec

from capellini.model.errors import Invalid

LEAST_INT: Final = -(2**63)  # 64 bits, signed: what Spark, JSON readers and MessagePack all take
MOST_INT: Final = 2**63 - 1
MAX_TEXT_BYTES: Final = 1_024  # of one element or item: a state is written whole, again and again
SMALL: Final = 64  # bytes that a state of a few numbers takes, about


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """When and by whom an update was made; strictly rising within a mutator."""

    at_us: int
    mutator: str


class Damaged(ValueError):
    """These bytes are no state of this kind."""


class State(ABC):
    """Never raises in `apply` what `check` has let through. `decode` raises Damaged (or any ValueError) for bytes that
    are none of its own, and never makes an empty state of them."""

    kind: ClassVar[str]
    takes: ClassVar[str]  # what an update is, in words
    version: ClassVar[int] = 1
    idempotent: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def check(cls, update: object, stamp: Stamp) -> Any:
        """The update in the form that `apply` takes. Raises Invalid, and then nothing was changed."""

    @abstractmethod
    def apply(self, checked: Any) -> None:
        """Take in one update."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Take in another state, which stays as it is."""

    @abstractmethod
    def value(self) -> Any:
        """What a reader wants to know; JSON can carry it."""

    @abstractmethod
    def encode(self) -> bytes:
        """For sketches, the binary form of Apache DataSketches."""

    @classmethod
    @abstractmethod
    def decode(cls, data: bytes, version: int) -> Self:
        """From bytes that `encode` of this or an earlier version made."""

    def sketch(self) -> bytes | None:
        """For those who have tools for it: the bytes of an Apache DataSketch, if this is one."""
        return None if self.exact else self.encode()

    def weight(self) -> int:
        """About how many bytes `encode` makes of it."""
        return SMALL

    def memory(self) -> int:
        """About how many bytes it takes in this process."""
        return self.weight()


def whole_number(update: object, kind: str) -> int:
    if type(update) is not int:
        raise Invalid(f"an update of {kind} is a whole number, not {shown(update)}")
    if not LEAST_INT <= update <= MOST_INT:
        raise Invalid(f"an update of {kind} has at most 64 bits, signed: {shown(update)} is out of range")
    return update


def number(update: object, kind: str) -> int | float:
    if type(update) is float:
        if update != update or update in (float("inf"), float("-inf")):
            raise Invalid(f"an update of {kind} is a finite number, not {update!r}")
        return update
    if type(update) is not int:
        raise Invalid(f"an update of {kind} is a number, not {shown(update)}")
    return whole_number(update, kind)


def element(update: object, kind: str) -> str | int:
    """A text or a whole number."""
    if type(update) is int:
        return whole_number(update, kind)
    if type(update) is not str:
        raise Invalid(f"an update of {kind} is a text or a whole number, not {shown(update)}")
    return text(update, kind)


def text(update: object, kind: str) -> str:
    if type(update) is not str:
        raise Invalid(f"an update of {kind} is a text, not {shown(update)}")
    try:
        size = len(update.encode())
    except UnicodeEncodeError:
        raise Invalid(f"an update of {kind} is not valid text") from None
    if not 1 <= size <= MAX_TEXT_BYTES:
        raise Invalid(f"a text in {kind} has 1 to {MAX_TEXT_BYTES} bytes, not {size}")
    return update


def text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def shown(update: object) -> str:
    """Short enough for a sentence."""
    said = repr(update)
    return said if len(said) <= 60 else f"{said[:57]}..."


def check_version(version: int, newest: int) -> None:
    """Raises Damaged."""
    if not 1 <= version <= newest:
        raise Damaged(f"version {version} is not known here: this program is older than the one that wrote it")


def unpacked(data: bytes, type: Any, version: int, newest: int) -> Any:
    """MessagePack of that type. Raises Damaged."""
    check_version(version, newest)
    try:
        return msgspec.msgpack.decode(data, type=type)
    except msgspec.DecodeError as error:
        raise Damaged(str(error)) from None
