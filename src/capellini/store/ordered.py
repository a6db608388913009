"""Keys as bytes that sort the way the keys do.

    TEXT, BLOB   the bytes with 00 written as 00 FF, then 00 00     self-delimiting: 00 00 comes nowhere else
    INT          00 or 01 for negative or not, then 8 bytes         so that one `unpack` gives a whole key of numbers
    TIMEUUID     its time, high part first, then its lower half with each byte's sign bit turned (signed bytes, as
    in Cassandra)

Every part ends by itself, so a key is its parts one after another, the bytes of a shorter key are the first bytes
of all keys that begin with it, and `memcmp` gives the order of the tuples. That is all RocksDB needs: slices are
ranges of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast
from uuid import UUID

from capellini.model.errors import Invalid
from capellini.store.interface import Column, Key, KeyPart, Type

Encode = Callable[[KeyPart], bytes]
Decode = Callable[[bytes, int], tuple[KeyPart, int]]  # (data, at) -> (part, where the next one starts)

END: Final = b"\x00\x00"
_INT: Final = struct.Struct(">Bq")
_PAIR: Final = struct.Struct(">QQ")
_SIGNS: Final = 0x8080808080808080
_UNPACKERS_KEPT: Final = 256  # lengths of partition keys; more are rare


def _encode_text(part: KeyPart) -> bytes:
    if type(part) is not str:
        raise Invalid(f"a key part is text, not {type(part).__name__}")
    try:
        return part.encode().replace(b"\x00", b"\x00\xff") + END
    except UnicodeEncodeError:
        raise Invalid("a key part is not valid text: it holds half of a surrogate pair") from None


def _encode_blob(part: KeyPart) -> bytes:
    if type(part) is not bytes:
        raise Invalid(f"a key part is bytes, not {type(part).__name__}")
    return part.replace(b"\x00", b"\x00\xff") + END


def _encode_int(part: KeyPart) -> bytes:
    if type(part) is not int or not -(1 << 63) <= part < 1 << 63:
        raise Invalid(f"a key part is a whole number of 64 bits, not {type(part).__name__}")
    return _INT.pack(part >= 0, part)


def _encode_timeuuid(part: KeyPart) -> bytes:
    if type(part) is not UUID or part.int >> 76 & 0xF != 1:  # where the version is
        raise Invalid("a key part is a time UUID (version 1)")
    high, low = part.int >> 64, part.int & 0xFFFF_FFFF_FFFF_FFFF
    time = (high & 0xFFFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32
    return _PAIR.pack(time, low ^ _SIGNS)


def _decode_blob(data: bytes, at: int) -> tuple[KeyPart, int]:
    end = data.index(END, at)
    return data[at:end].replace(b"\x00\xff", b"\x00"), end + 2


def _decode_text(data: bytes, at: int) -> tuple[KeyPart, int]:
    end = data.index(END, at)
    return data[at:end].replace(b"\x00\xff", b"\x00").decode(), end + 2


def _decode_int(data: bytes, at: int) -> tuple[KeyPart, int]:
    return cast(int, _INT.unpack_from(data, at)[1]), at + 9


def _decode_timeuuid(data: bytes, at: int) -> tuple[KeyPart, int]:
    time, low = _PAIR.unpack_from(data, at)
    high = (time & 0xFFFF_FFFF) << 32 | (time >> 32 & 0xFFFF) << 16 | time >> 48
    return UUID(int=high << 64 | (low ^ _SIGNS)), at + 16


_CODECS: Final[dict[Type, tuple[Encode, Decode]]] = {
    Type.TEXT: (_encode_text, _decode_text),
    Type.BLOB: (_encode_blob, _decode_blob),
    Type.INT: (_encode_int, _decode_int),
    Type.TIMEUUID: (_encode_timeuuid, _decode_timeuuid),
}


class KeyCodec:
    """Encodes the keys of one table: its partition keys, or its clustering keys."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        for column in columns:
            if column.type not in _CODECS:
                raise Invalid(f"{column.name}: a key cannot be of type {column.type.value}")
        self.types: Final = tuple(column.type for column in columns)
        self._encoders: Final = tuple(_CODECS[kind][0] for kind in self.types)
        self._decoders: Final = tuple(_CODECS[kind][1] for kind in self.types)
        self._whole_numbers: Final = bool(columns) and all(kind is Type.INT for kind in self.types)
        self._unpackers: dict[int, struct.Struct] = {}  # by how many bytes come before the key

    def encode(self, key: Key) -> bytes:
        """A full key. Raises Invalid."""
        if len(key) != len(self._encoders):
            raise Invalid(f"a key of {len(self._encoders)} parts is needed, not of {len(key)}")
        return self.prefix(key)

    def prefix(self, key: Key) -> bytes:
        """A full key or the first parts of one. Raises Invalid."""
        encoders = self._encoders
        if len(key) == 1 and encoders:
            return encoders[0](key[0])
        if len(key) > len(encoders):
            raise Invalid(f"a key has at most {len(encoders)} parts, not {len(key)}")
        return b"".join([encode(part) for encode, part in zip(encoders, key, strict=False)])

    def split_all(self, places: Sequence[bytes], at: int) -> Iterable[Key]:
        """The full keys that many places have, each from `at` to its end."""
        if self._whole_numbers:  # all are of one length: one unpacker goes through them all
            found = self._unpackers.get(at)
            if found is None:
                if len(self._unpackers) >= _UNPACKERS_KEPT:
                    self._unpackers.clear()
                found = struct.Struct(f">{at}x" + "xq" * len(self.types))
                self._unpackers[at] = found
            return found.iter_unpack(b"".join(places))
        decode = self.decode
        return [decode(place, at) for place in places]

    def source(self, name: str) -> tuple[str, dict[str, Any]]:
        """Python source that encodes a full key whose parts are called name0, name1, ... and were found good, with
        what it uses."""
        parts = [f"{name}{at}" for at in range(len(self.types))]
        if self._whole_numbers:
            both = ", ".join(f"{part} >= 0, {part}" for part in parts)
            return f"pack_key({both})", {"pack_key": struct.Struct(">" + "Bq" * len(parts)).pack}
        sources = [f"encode_{kind.name}({part})" for kind, part in zip(self.types, parts, strict=True)]
        return " + ".join(sources) or 'b""', {f"encode_{kind.name}": _CODECS[kind][0] for kind in self.types}

    def decode(self, data: bytes, at: int = 0) -> Key:
        return self.split(data, at)[0]

    def split(self, data: bytes, at: int = 0) -> tuple[Key, int]:
        """The key that starts there, and where it ends."""
        parts = []
        for decode in self._decoders:
            part, at = decode(data, at)
            parts.append(part)
        return tuple(parts), at
