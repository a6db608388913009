"""The statement texts and the reading of answers, without a Cassandra."""

from __future__ import annotations

from uuid import UUID

import pytest

from capellini.store import cql, schema
from capellini.store.cassandra_schema import root_id
from capellini.store.interface import ABSENT, Change, Column, Slice, Table, Type

EVENTS = Table(
    name="events",
    doc="What's there.",
    partition=(Column("queue", Type.TEXT), Column("part", Type.INT)),
    clustering=(Column("due", Type.TIMEUUID), Column("n", Type.INT)),
    columns=(Column("body", Type.BLOB), Column("flag", Type.BOOL)),
    statics=(Column("token", Type.TEXT), Column("state", Type.BLOB)),
    conditional=frozenset({"token", "state"}),
    time_series=True,
)
MOMENT = UUID("3ce0190a-e1c7-11f1-b86f-02fc00000001")


def test_a_table_is_created_with_its_key_statics_comment_and_time_windows() -> None:
    text = cql.create_table("ks", EVENTS)
    assert text.startswith('CREATE TABLE IF NOT EXISTS "ks"."events" (')
    assert 'PRIMARY KEY (("queue", "part"), "due", "n")' in text
    assert '"token" text static' in text
    assert "comment = 'What''s there.'" in text
    assert "TimeWindowCompactionStrategy" in text
    assert "gc_grace" not in text


def test_all_who_create_a_table_of_one_keyspace_give_it_the_same_id_and_another_keyspace_another() -> None:
    ids = [root_id(*each) for each in (("ks", 7), ("ks", 7), ("ks", 8), ("other", 7))]
    assert ids[0] == ids[1] and len(set(ids)) == 3
    assert f") WITH id = {ids[0]}\n   AND comment" in cql.create_table("ks", EVENTS, ids[0])


def test_a_table_without_clustering_has_the_partition_key_alone() -> None:
    text = cql.create_table("ks", schema.MONOTON)
    assert 'PRIMARY KEY (("queue", "generation"))' in text
    assert "compaction" not in text


@pytest.mark.parametrize(
    ("replication", "dc", "copies"),
    [
        ("3", "here", {"here": 3}),
        ("3", None, {"replication_factor": 3}),
        ("dc1:3,dc2:2", "dc1", {"dc1": 3, "dc2": 2}),
    ],
)
def test_replication_is_by_data_centre(replication: str, dc: str | None, copies: dict[str, int]) -> None:
    assert cql.replication_map(replication, dc) == copies
    first, count = next(iter(copies.items()))
    assert f"'class': 'NetworkTopologyStrategy', '{first}': {count}" in cql.create_keyspace("ks", copies)


def test_the_printed_schema_has_every_table_and_says_what_is_conditional() -> None:
    text = cql.schema_text(schema.TABLES, "ks", "3")
    for table in (cql.VERSIONS, *schema.TABLES):
        assert f'CREATE TABLE IF NOT EXISTS "ks"."{table.name}"' in text
        assert f"-- {table.doc}" in text
    assert "-- Changed by compare-and-set only: state, token, dropped." in text
    assert text.count(";\n") == len(schema.TABLES) + 2


def test_faults_name_what_is_missing_or_other() -> None:
    good = {
        "queue": ("partition_key", "text"),
        "generation": ("partition_key", "bigint"),
        "next": ("regular", "bigint"),
        "state": ("regular", "text"),
        "token": ("regular", "text"),
        "somebody_elses": ("regular", "text"),
    }
    assert cql.faults(schema.MONOTON, good) == []
    assert cql.faults(schema.MONOTON, {**good, "next": ("regular", "text")}) == [
        "next is regular text and should be regular bigint"
    ]
    assert cql.faults(schema.MONOTON, {name: is_ for name, is_ in good.items() if name != "state"}) == [
        "state text is missing"
    ]
    assert cql.faults(schema.MONOTON, {**good, "shard": ("clustering", "int")}) == ["shard is one key column too many"]


def test_an_update_names_the_row_or_the_partition() -> None:
    assert cql.update("ks", EVENTS, ("body",), static=False) == (
        'UPDATE "ks"."events" USING TTL ? SET "body" = ? WHERE "queue" = ? AND "part" = ? AND "due" = ? AND "n" = ?'
    )
    assert "TTL" not in cql.update("ks", EVENTS, ("body",), static=False, expires=False)
    assert cql.update("ks", EVENTS, ("state", "token"), static=True) == (
        'UPDATE "ks"."events" USING TTL ? SET "state" = ?, "token" = ? WHERE "queue" = ? AND "part" = ?'
    )


def test_a_conditional_update_shows_the_columns_it_does_not_condition_on() -> None:
    assert cql.update_if("ks", EVENTS, ("state",), True, ("token",)).endswith(' IF "token" = ? AND "state" != ?')
    assert cql.update_if("ks", EVENTS, ("body",), False, ("body",)).endswith(
        ' IF "body" = ? AND "flag" IN (null, true, false)'
    )


def test_absent_is_that_no_column_has_a_value() -> None:
    assert cql.expectations(EVENTS, Change((MOMENT, 1), ABSENT, {"body": b""})) == {"body": None, "flag": None}
    assert cql.expectations(EVENTS, Change(None, {"token": "a"}, {"token": "b"})) == {"token": "a"}
    assert cql.expectations(EVENTS, Change(None, None, {"token": "b"})) is None


@pytest.mark.parametrize(
    ("bounds", "where", "bound"),
    [
        ({}, "", []),
        ({"start": (MOMENT,)}, ' AND ("due") >= (?)', [MOMENT]),
        ({"end": (MOMENT,)}, ' AND ("due") < (?)', [MOMENT]),
        ({"after": (MOMENT, 5)}, ' AND ("due", "n") > (?, ?)', [MOMENT, 5]),
        (
            {"start": (MOMENT,), "end": (MOMENT, 5)},
            ' AND ("due") >= (?) AND ("due", "n") < (?, ?)',
            [MOMENT, MOMENT, 5],
        ),
    ],
)
def test_slices_are_bounds_on_prefixes(bounds: dict[str, object], where: str, bound: list[object]) -> None:
    slice = Slice(EVENTS, ("q", 7), limit=10, **bounds)  # type: ignore[arg-type]
    text, parameters = cql.select("ks", slice, EVENTS.columns)
    assert text == (
        f'SELECT "due", "n", "body", "flag" FROM "ks"."events" WHERE "queue" = ? AND "part" = ?{where} LIMIT ?'
    )
    assert parameters == ["q", 7, *bound, 10]


def test_a_reverse_slice_goes_on_below_after() -> None:
    slice = Slice(EVENTS, ("q", 7), start=(MOMENT,), after=(MOMENT, 5), reverse=True)
    text, parameters = cql.select("ks", slice, ())
    assert text.endswith(' AND ("due") >= (?) AND ("due", "n") < (?, ?) ORDER BY "due" DESC, "n" DESC LIMIT ?')
    assert parameters == ["q", 7, MOMENT, MOMENT, 5, 1_000]


def test_refused_rows_of_a_batch_are_found_by_their_keys() -> None:
    answer = [
        {cql.APPLIED: False, "queue": "q", "part": 1, "due": str(MOMENT), "n": 1, "token": "t", "state": None,
         "body": b"x", "flag": None},
        {cql.APPLIED: False, "queue": "q", "part": 1, "due": str(MOMENT), "n": 9, "token": "t", "state": None,
         "body": b"y", "flag": True},
    ]  # fmt: skip
    asked = [None, (MOMENT, 1), (MOMENT, 2)]
    assert cql.current_rows(EVENTS, asked, answer) == {None: {"token": "t"}, (MOMENT, 1): {"body": b"x"}}


def test_a_refusal_without_rows_shows_the_static_row_or_nothing() -> None:
    keyless = {cql.APPLIED: False, "queue": "q", "part": 1, "due": None, "n": None, "token": "t", "body": None}
    assert cql.current_rows(EVENTS, [None, (MOMENT, 1)], [keyless]) == {None: {"token": "t"}}
    assert cql.current_rows(EVENTS, [None, (MOMENT, 1)], [{cql.APPLIED: False}]) == {}


def test_a_lone_statements_refusal_belongs_to_the_row_it_named() -> None:
    line = {cql.APPLIED: False, "body": b"x", "flag": False}
    assert cql.current_rows(EVENTS, [(MOMENT, 1)], [line]) == {(MOMENT, 1): {"body": b"x", "flag": False}}
    assert cql.current_rows(schema.MONOTON, [()], [{cql.APPLIED: False, "next": 5}]) == {(): {"next": 5}}
    assert cql.current_rows(EVENTS, [None], [{cql.APPLIED: False, "token": "t"}]) == {None: {"token": "t"}}


def test_partitions_go_on_after_a_key() -> None:
    assert cql.distinct("ks", EVENTS, go_on=True) == (
        'SELECT DISTINCT "queue", "part" FROM "ks"."events" WHERE token("queue", "part") > token(?, ?) LIMIT ?'
    )
    assert "WHERE" not in cql.distinct("ks", EVENTS, go_on=False)
