"""The usual batch in one pass: rows that write every column, each checked and made ready in the same loop.

    for key, values in rows:      k0, k1, ...  the parts of the key        c0, c1, ...  the values, in the table's order
        anything unusual?         ──▶ give up: the careful way (store/checks.py) does it, or says what is wrong
        each                      what a store does with a good row, as source that uses k0, c0, ...

The loop is written out as Python source for a table and compiled once, as dataclasses do: a call per value would take
several times as long as what the stores below need for a row. It accepts nothing that `check_batch` refuses; what it
does not know to be good it leaves to it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from capellini.store.checks import LEAST_INT, MOST_INT, fits_text, fits_timeuuid
from capellini.store.interface import MAX_KEY_BYTES, MAX_VALUE_BYTES, Table, Type

LONG_KEY: Final = MAX_KEY_BYTES // 4  # characters of all parts together: a character has up to four bytes of UTF-8

# What makes a value unusual.
_WRONG: Final[Mapping[Type, str]] = {
    Type.TEXT: "not fits_text({0})",
    Type.BLOB: "type({0}) is not bytes or len({0}) > MAX_VALUE_BYTES",
    Type.INT: "type({0}) is not int or not LEAST_INT <= {0} <= MOST_INT",
    Type.DOUBLE: "type({0}) is not float or {0} != {0}",
    Type.BOOL: "{0} is not True and {0} is not False",
    Type.TIMEUUID: "not fits_timeuuid({0})",
}
# A row that does not come after the last one.
_FOLLOW: Final = """if {0} <= last:
                ordered = False
            last = {0}"""
_PACKED: Final = {Type.INT: "type({0}) is not int", Type.BLOB: "type({0}) is not bytes"}


def compiled(
    table: Table,
    arguments: str,
    each: str,
    result: str,
    scope: dict[str, Any],
    before: Sequence[str] = (),
    packs: bool = False,
) -> Callable[..., Any]:
    """A function of (rows, arguments): `result` if every row is whole and good and none is named twice, else None.

    It is for tables with columns, none of them conditional. `packs`: numbers are packed by `struct`, which refuses
    those of more than 64 bits itself, and the caller sees by the size of it all that no value is too large.
    """
    keys = [(f"k{at}", column.type) for at, column in enumerate(table.clustering)]
    values = [(f"c{at}", column.type) for at, column in enumerate(table.columns)]
    wrong = {**_WRONG, **_PACKED} if packs else _WRONG
    unpack = f"{', '.join(name for name, _ in keys)}, = key" if keys else "() = key"
    takes = "\n            ".join(f"c{at} = values[{column.name!r}]" for at, column in enumerate(table.columns))
    bad = [f"type(key) is not tuple or len(values) != {len(values)}"]
    bad += [wrong[kind].format(name) for name, kind in (*keys, *values)]
    loose = [f"len({name})" for name, kind in keys if kind in (Type.TEXT, Type.BLOB)]
    if loose:
        bad.append(f"{' + '.join(loose)} > LONG_KEY")
    # Rows mostly come in order, and then none comes twice. UUIDs are compared slowly, and by another order.
    if [kind for _, kind in keys] == [Type.INT]:
        first, follow = "last = LEAST_INT - 1", _FOLLOW.format("k0")
    elif keys and all(kind is not Type.TIMEUUID for _, kind in keys):
        first, follow = "last = ()", _FOLLOW.format("key")
    else:
        first, follow = "ordered = len(rows) < 2", ""
    start = "\n    ".join(["ordered = True", first, *before])
    source = f"""
def whole(rows, {arguments}):
    {start}
    try:
        for key, values in rows:
            {unpack}
            {takes}
            if {" or ".join(bad)}:
                return None
            {follow}
            {each}
    except (KeyError, TypeError, ValueError, StructError):  # no such column, no such key, too large a number
        return None
    if not ordered and len({{key for key, _ in rows}}) != len(rows):
        return None
    return {result}
"""
    scope = {
        "LEAST_INT": LEAST_INT,
        "LONG_KEY": LONG_KEY,
        "MAX_VALUE_BYTES": MAX_VALUE_BYTES,
        "MOST_INT": MOST_INT,
        "StructError": struct.error,
        "fits_text": fits_text,
        "fits_timeuuid": fits_timeuuid,
        **scope,
    }
    exec(source, scope)
    found: Callable[..., Any] = scope["whole"]
    return found
