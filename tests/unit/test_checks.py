"""The checks that every store makes first: cheap for good requests, clear about bad ones.

That bad requests change nothing is shown on every store in `tests/conformance/test_limits.py`; here is what the checks
themselves decide.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid1, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capellini.model.errors import Invalid, TooLarge
from capellini.store import checks
from capellini.store.cassandra import compile_whole
from capellini.store.checks import MAX_TTL_S, check_batch, check_cas, check_drop, check_partitions, check_slice
from capellini.store.interface import (
    ABSENT,
    MAX_BATCH_ROWS,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    Batch,
    Cas,
    Change,
    Column,
    Level,
    Slice,
    Table,
    Type,
)
from capellini.store.layout import Plan
from capellini.store.schema import TABLES


def table(*clustering: Type, conditional: bool = False) -> Table:
    columns = tuple(Column(kind.value, kind) for kind in Type)
    return Table(
        name="some",
        doc="A table with a column of each type.",
        partition=(Column("p", Type.TEXT),),
        clustering=tuple(Column(f"k{at}", kind) for at, kind in enumerate(clustering)),
        columns=columns,
        statics=(Column("s", Type.TEXT),) if clustering else (),
        conditional=frozenset(column.name for column in columns) | {"s"} if conditional else frozenset(),
        listable=True,
    )


PLAIN = table(Type.INT)
GUARDED = table(Type.INT, conditional=True)
MOMENT = uuid1()

GOOD: dict[Type, list[object]] = {
    Type.TEXT: ["", "x", "ü🍝\0", None],
    Type.BLOB: [b"", bytes(256), None],
    Type.INT: [0, -(2**63), 2**63 - 1, None],
    Type.DOUBLE: [0.0, -1.5, float("inf"), None],
    Type.BOOL: [True, False, None],
    Type.TIMEUUID: [MOMENT, None],
}
BAD: dict[Type, list[object]] = {
    Type.TEXT: [b"x", 1, "\ud800", ["x"]],
    Type.BLOB: ["x", bytearray(b"x"), memoryview(b"x"), 1],
    Type.INT: [True, 1.0, "1", 2**63, -(2**63) - 1],
    Type.DOUBLE: [1, "1", float("nan"), True],
    Type.BOOL: [0, 1, "true"],
    Type.TIMEUUID: [uuid4(), str(MOMENT), MOMENT.bytes, UUID(int=0)],
}


@pytest.mark.parametrize("kind", Type)
def test_values_of_the_right_type_fit_and_others_do_not(kind: Type) -> None:
    for value in GOOD[kind]:
        check_batch(Batch(PLAIN, ("p",), (((1,), {kind.value: value}),)))  # type: ignore[dict-item]
        check_cas(Cas(GUARDED, ("p",), (Change((1,), {kind.value: value}, {kind.value: value}),)))  # type: ignore[dict-item]
    for value in BAD[kind]:
        bad: Any = {kind.value: value}
        with pytest.raises(Invalid, match="some"):
            check_batch(Batch(PLAIN, ("p",), (((1,), bad),)))
        with pytest.raises(Invalid, match="some"):
            check_cas(Cas(GUARDED, ("p",), (Change((1,), {"bigint": 1}, bad),)))
        with pytest.raises(Invalid, match="some"):
            check_cas(Cas(GUARDED, ("p",), (Change((1,), bad, {"bigint": 1}),)))


@pytest.mark.parametrize("kind", [Type.TEXT, Type.BLOB, Type.INT, Type.TIMEUUID])
def test_keys_of_the_right_type_fit_and_others_do_not(kind: Type) -> None:
    keyed = table(kind)
    for part in GOOD[kind]:
        if part is not None:
            check_slice(Slice(keyed, ("p",), start=(part,), after=None))  # type: ignore[arg-type]
            check_batch(Batch(keyed, ("p",), (((part,), {"bigint": 1}),)))  # type: ignore[arg-type]
    for part in [*BAD[kind], None]:
        key: Any = (part,)
        for bad in (Slice(keyed, ("p",), start=key), Slice(keyed, ("p",), end=key), Slice(keyed, ("p",), after=key)):
            with pytest.raises(Invalid):
                check_slice(bad)
        with pytest.raises(Invalid):
            check_batch(Batch(keyed, ("p",), ((key, {"bigint": 1}),)))


def test_sizes_are_measured_in_bytes_of_utf_8() -> None:
    check_batch(Batch(PLAIN, ("p",), (((1,), {"text": "ü" * (MAX_VALUE_BYTES // 2), "blob": bytes(MAX_VALUE_BYTES)}),)))
    for name, value in (("text", "ü" * (MAX_VALUE_BYTES // 2 + 1)), ("blob", bytes(MAX_VALUE_BYTES + 1))):
        with pytest.raises(TooLarge, match=str(MAX_VALUE_BYTES)):
            check_batch(Batch(PLAIN, ("p",), (((1,), {name: value}),)))
    check_drop(PLAIN, ("ü" * (MAX_KEY_BYTES // 2),))
    for partition in ("ü" * (MAX_KEY_BYTES // 2 + 1), "x" * (MAX_KEY_BYTES + 1), "x" * (MAX_VALUE_BYTES + 1)):
        with pytest.raises(TooLarge):
            check_drop(PLAIN, (partition,))


def test_a_key_is_as_large_as_all_its_parts() -> None:
    wide = table(Type.TEXT, Type.BLOB)
    half = MAX_KEY_BYTES // 2
    check_batch(Batch(wide, ("p",), ((("x" * half, b"x" * half), {"bigint": 1}),)))
    with pytest.raises(TooLarge):
        check_batch(Batch(wide, ("p",), ((("x" * half, b"x" * (half + 1)), {"bigint": 1}),)))
    with pytest.raises(TooLarge):
        check_slice(Slice(wide, ("p",), start=("x" * (MAX_KEY_BYTES + 1),)))


def test_a_batch_has_rows_up_to_a_limit() -> None:
    rows = tuple(((at,), {"bigint": at}) for at in range(MAX_BATCH_ROWS))
    check_batch(Batch(PLAIN, ("p",), rows))
    with pytest.raises(TooLarge, match=str(MAX_BATCH_ROWS)):
        check_batch(Batch(PLAIN, ("p",), (*rows, ((-1,), {"bigint": 0}))))


@pytest.mark.parametrize("ttl_s", [0, -1, MAX_TTL_S + 1, 1.0, "1", True])
def test_a_bad_time_to_live_is_refused(ttl_s: Any) -> None:
    with pytest.raises(Invalid, match="time to live"):
        check_batch(Batch(PLAIN, ("p",), (((1,), {"bigint": 1}),), ttl_s=ttl_s))
    with pytest.raises(Invalid, match="time to live"):
        check_cas(Cas(GUARDED, ("p",), (Change((1,), ABSENT, {"bigint": 1}),), ttl_s=ttl_s))


@pytest.mark.parametrize("timestamp_us", [0, -1, 2**63, 1.0, True])
def test_a_bad_timestamp_is_refused(timestamp_us: Any) -> None:
    with pytest.raises(Invalid, match="timestamp"):
        check_batch(Batch(PLAIN, ("p",), (((1,), {"bigint": 1}),), timestamp_us=timestamp_us))
    with pytest.raises(Invalid, match="timestamp"):
        check_drop(PLAIN, ("p",), timestamp_us)


@pytest.mark.parametrize("level", Level)
def test_serial_levels_are_for_compare_and_set_and_reads(level: Level) -> None:
    serial = level in (Level.SERIAL, Level.LOCAL_SERIAL)
    check_slice(Slice(PLAIN, ("p",), level=level))
    batch = Batch(PLAIN, ("p",), (((1,), {"bigint": 1}),), level=level)
    cas = Cas(GUARDED, ("p",), (Change((1,), ABSENT, {"bigint": 1}),), level=level)
    if serial:
        check_cas(cas)
        with pytest.raises(Invalid, match="level"):
            check_batch(batch)
        with pytest.raises(Invalid, match="level"):
            check_drop(PLAIN, ("p",), level=level)
    else:
        check_batch(batch)
        check_drop(PLAIN, ("p",), level=level)
        with pytest.raises(Invalid, match="level"):
            check_cas(cas)


def test_who_may_write_a_column_is_said_in_the_refusal() -> None:
    with pytest.raises(Invalid, match="compare-and-set only"):
        check_batch(Batch(GUARDED, ("p",), (((1,), {"text": "x"}),)))
    with pytest.raises(Invalid, match="plain writes only"):
        check_cas(Cas(PLAIN, ("p",), (Change((1,), ABSENT, {"text": "x"}),)))
    with pytest.raises(Invalid, match="it has text"):
        check_batch(Batch(PLAIN, ("p",), (((1,), {"other": "x"}),)))


def test_a_table_of_one_row_has_no_static_row_and_nothing_to_clear() -> None:
    single = table()
    check_batch(Batch(single, ("p",), (((), {"bigint": 1}),)))
    with pytest.raises(Invalid, match="static"):
        check_cas(Cas(single, ("p",), (Change(None, {"s": None}, {"s": "x"}),)))
    with pytest.raises(Invalid, match="one row"):
        check_batch(Batch(single, ("p",), (((), {"bigint": 1}),), clear_before=(1,)))


def test_only_listable_tables_are_listed() -> None:
    check_partitions(PLAIN, 1, ("p",))
    with pytest.raises(Invalid, match="listed"):
        check_partitions(msgspec.structs.replace(PLAIN, listable=False), 1, None)
    for limit in (0, -1, 1.5, True):
        with pytest.raises(Invalid, match="limit"):
            check_partitions(PLAIN, limit, None)  # type: ignore[arg-type]


def test_a_long_value_is_cut_in_the_sentence() -> None:
    with pytest.raises(Invalid) as caught:
        check_batch(Batch(PLAIN, ("p",), (((1,), {"bigint": "x" * 100_000}),)))
    assert len(caught.value.says) < 300


def test_rules_are_found_by_identity_and_two_alike_tables_do_not_mix() -> None:
    one, other = table(Type.INT), msgspec.structs.replace(table(Type.INT), conditional=frozenset({"text"}))
    assert checks.rules_of(one) is checks.rules_of(one)
    check_batch(Batch(one, ("p",), (((1,), {"text": "x"}),)))
    with pytest.raises(Invalid):
        check_batch(Batch(other, ("p",), (((1,), {"text": "x"}),)))


def test_tables_that_come_and_go_do_not_pile_up() -> None:
    for _ in range(checks._RULES_KEPT + 10):
        check_drop(table(Type.INT), ("p",))
    assert len(checks._rules) <= checks._RULES_KEPT


def test_every_declared_table_has_rules() -> None:
    for declared in TABLES:
        rules = checks.rules_of(declared)
        assert set(rules.plain) == {c.name for c in declared.columns} - declared.conditional


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary() | st.floats(), st.lists), st.integers(0, 5))
def test_whatever_comes_is_refused_with_a_sentence_or_taken(what: Any, place: int) -> None:
    requests: list[Any] = [
        lambda: check_batch(Batch(PLAIN, what, (((1,), {"bigint": 1}),))),
        lambda: check_batch(Batch(PLAIN, ("p",), (((what,), {"bigint": 1}),))),
        lambda: check_batch(Batch(PLAIN, ("p",), (((1,), {"text": what}),))),
        lambda: check_cas(Cas(GUARDED, ("p",), (Change((1,), {"text": what}, {"bigint": what}),))),
        lambda: check_slice(Slice(PLAIN, ("p",), start=(what,), limit=what)),
        lambda: check_drop(PLAIN, (what,), what),
    ]
    says: str | None = None
    try:
        requests[place]()
    except Invalid as refused:
        says = refused.says
    assert says is None or len(says) > 10


# ---- the usual batch in one pass

WHOLE = {
    Type.TEXT.value: "ü",
    Type.BLOB.value: b"x",
    Type.INT.value: 1,
    Type.DOUBLE.value: 0.5,
    Type.BOOL.value: True,
    Type.TIMEUUID.value: MOMENT,
}
KEYS: dict[Type, tuple[Any, Any]] = {
    Type.TEXT: ("a", "b"),
    Type.BLOB: (b"a", b"b"),
    Type.INT: (-1, 1),
    Type.TIMEUUID: (MOMENT, uuid1()),
}


def one_pass(of: Table, rows: Any) -> tuple[bool, bool]:
    """Whether the stores take the rows in one pass: the embedded one, and the one on Cassandra."""
    put: list[tuple[bytes, bytes, None]] = []
    plan = Plan(of, 1)
    taken = plan.put_whole(rows, lambda *row: put.append(row), b"base", None, 5, 0)
    if sum(len(record) for _, record, _ in put) > MAX_VALUE_BYTES:
        taken = False  # who asks sees to that: then a value may be too large
    if taken:
        assert put == [(b"base" + plan.keys.encode(key), plan.rows.whole(values, 5, 0), None) for key, values in rows]
    made = compile_whole(of, False)(rows, "prepared", 0, ("p",))
    expiring = compile_whole(of, True)(rows, "prepared", 7, ("p",))
    assert (made is None) is (expiring is None)
    if made is not None:
        expected = [("prepared", [*(values[c.name] for c in of.columns), "p", *key]) for key, values in rows]
        assert made[0] == expected and made[1] >= len(rows)
        assert expiring[0] == [("prepared", [7, *parameters]) for _, parameters in expected]
    return taken, made is not None


@pytest.mark.parametrize("kinds", [(), *((kind,) for kind in KEYS), (Type.INT, Type.INT), (Type.TEXT, Type.TIMEUUID)])
def test_whole_rows_are_taken_in_one_pass_in_any_order(kinds: tuple[Type, ...]) -> None:
    low, high = (tuple(KEYS[kind][at] for kind in kinds) for at in (0, 1))
    rows = ((low, WHOLE), (high, dict(reversed(WHOLE.items())))) if kinds else ((low, WHOLE),)
    assert one_pass(table(*kinds), rows) == one_pass(table(*kinds), rows[::-1]) == (True, True)
    assert one_pass(table(*kinds), (rows[0], rows[0])) == (False, False)


@pytest.mark.parametrize("key", [5, (), (1, 2), [1], ("x",), (True,), (2**63,), (None,)])
def test_one_pass_takes_no_key_that_the_checks_refuse(key: Any) -> None:
    with pytest.raises(Invalid):
        check_batch(Batch(PLAIN, ("p",), ((key, WHOLE),)))
    assert one_pass(PLAIN, ((key, WHOLE),)) == (False, False)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Type.TEXT, "\ud800"),
        (Type.TEXT, b"x"),
        (Type.BLOB, bytearray(b"x")),
        (Type.BLOB, bytes(MAX_VALUE_BYTES + 1)),
        (Type.INT, True),
        (Type.INT, 2**63),
        (Type.DOUBLE, 1),
        (Type.DOUBLE, float("nan")),
        (Type.BOOL, 1),
        (Type.TIMEUUID, uuid4()),
    ],
)
def test_one_pass_takes_no_value_that_the_checks_refuse(kind: Type, value: Any) -> None:
    rows: Any = (((1,), {**WHOLE, kind.value: value}),)
    with pytest.raises(Invalid):
        check_batch(Batch(PLAIN, ("p",), rows))
    assert one_pass(PLAIN, rows) == (False, False)


def test_one_pass_leaves_rows_in_pieces_to_the_careful_way() -> None:
    part = {Type.INT.value: 1}
    for values in (part, {**WHOLE, Type.INT.value: None}, {**WHOLE, "other": 1}, {}):
        assert one_pass(PLAIN, (((1,), values),)) == (False, False)
    assert one_pass(GUARDED, (((1,), WHOLE),)) == (False, False)
