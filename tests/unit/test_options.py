"""The table of options: what it says is what is checked."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capellini.model.errors import Conflict, Invalid
from capellini.model.options import KINDS, WORK, Option, WorkOptions, check_change, check_name, options_of

NUMBERS = [option for option in WORK if option.type is not str]


def ids(option: Option) -> str:
    return option.name


def test_the_table_and_the_values_name_the_same_options_with_the_same_defaults() -> None:
    assert {option.name: option.default for option in WORK} == msgspec.structs.asdict(WorkOptions())
    assert options_of("work", {}) == WorkOptions()


@pytest.mark.parametrize("option", NUMBERS, ids=ids)
def test_least_and_most_are_taken_and_what_lies_beyond_is_refused(option: Option) -> None:
    assert option.least is not None and option.most is not None
    more = {"dead_letters": "d"} if option.name == "delivery_limit" else {}
    for value in (option.least, option.most):
        assert getattr(options_of("work", {option.name: value, **more}), option.name) == value
    for value in (option.least - 1, option.most + 1, 10**400, math.nan, math.inf, True, "1", None):
        with pytest.raises(Invalid, match=option.name):
            options_of("work", {option.name: value})


@pytest.mark.parametrize("option", [one for one in NUMBERS if one.type is int], ids=ids)
def test_whole_numbers_must_be_whole(option: Option) -> None:
    with pytest.raises(Invalid, match="whole"):
        options_of("work", {option.name: (option.least or 0) + 0.5})


@given(st.dictionaries(st.text(max_size=20), st.one_of(st.integers(), st.floats(), st.text(max_size=5), st.none())))
def test_whatever_is_given_is_taken_whole_or_refused_in_words(given_options: dict[str, Any]) -> None:
    try:
        options = options_of("work", given_options)
    except Invalid:
        assert given_options, "no options at all are fine"
    else:
        assert all(getattr(options, name) == value for name, value in given_options.items())


@pytest.mark.parametrize("option", NUMBERS, ids=ids)
def test_what_cannot_change_is_a_conflict_and_the_rest_changes(option: Option) -> None:
    before = WorkOptions(dead_letters="d")
    value = option.most if option.default != option.most else option.least
    if option.changeable:
        assert getattr(check_change("work", before, {option.name: value}), option.name) == value
    else:
        with pytest.raises(Conflict, match=option.name):
            check_change("work", before, {option.name: value})
        assert check_change("work", before, {option.name: option.default}) == before


def test_a_delivery_limit_needs_dead_letters() -> None:
    with pytest.raises(Invalid, match="dead_letters"):
        options_of("work", {"delivery_limit": 3})
    with pytest.raises(Invalid, match="dead_letters"):
        check_change("work", WorkOptions(dead_letters="d", delivery_limit=2), {"dead_letters": ""})


def test_unknown_kinds_and_options_are_refused_naming_what_there_is() -> None:
    with pytest.raises(Invalid, match=", ".join(KINDS)):
        options_of("stack", {})
    with pytest.raises(Invalid, match="visibility_s"):
        options_of("work", {"visibility": 3})


@pytest.mark.parametrize("name", ["a", "A1", "a.b-c_d", "0", "x" * 100])
def test_good_names_are_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "a/b", "a b", "ä", "x" * 101, "a\n"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="queue name"):
        check_name(name)
