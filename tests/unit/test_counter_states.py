"""Every state: merging cares for neither order nor grouping, bytes come back as they were, bad updates are refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from capellini.counters.states.distinct import Hll, Theta
from capellini.counters.states.interface import MAX_TEXT_BYTES, Damaged, Stamp, State
from capellini.counters.states.queue import SUMS, Activity
from capellini.counters.states.registry import OURS, Registry
from capellini.counters.states.sets import AddRemoveSet
from capellini.counters.states.spread import FREQUENT_LG_K, Frequent, Quantiles
from capellini.model.errors import Invalid

CASES = settings(max_examples=30, deadline=None)
whole = some.integers(-(2**63), 2**63 - 1)
texts = some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
elements = whole | texts
numbers = whole | some.floats(allow_nan=False, allow_infinity=False)
UPDATES: dict[str, Any] = {
    "sum": whole,
    "changes": whole,
    "min": numbers,
    "max": numbers,
    "last": elements | some.booleans(),
    "set": some.integers(0, 30) | texts,
    "add_remove_set": some.builds(
        lambda what, one: {what: one}, some.sampled_from(["add", "remove"]), some.integers(0, 9)
    ),
    "hll": elements,
    "theta": elements,
    "quantiles": numbers,
    "frequent": texts | some.builds(lambda one, many: {"item": one, "weight": many}, texts, some.integers(1, 9)),
    "queue": some.builds(
        Activity,
        some.dictionaries(some.sampled_from(SUMS), some.integers(1, 10**12)),
        some.lists(texts, max_size=3).map(tuple),
        some.lists(some.floats(0, 10**6), max_size=3).map(tuple),
        some.lists(some.floats(0, 10**6), max_size=3).map(tuple),
    ),
}
EXACT = [state for state in OURS if state.exact]


def made(state: type[State], updates: list[Any], mutator: str, first_us: int = 1) -> Any:
    one = state()
    for at, update in enumerate(updates):
        one.apply(state.check(update, Stamp(first_us + at, mutator)))
    return one


def together(*parts: Any) -> Any:
    state = type(parts[0])
    whole = state.decode(parts[0].encode(), state.version)  # a copy
    for part in parts[1:]:
        whole.merge(part)
    return whole


def test_every_state_has_updates_here() -> None:
    assert set(UPDATES) == {state.kind for state in OURS}


@pytest.mark.parametrize("state", EXACT, ids=lambda state: state.kind)
@given(data=some.data())
@CASES
def test_exact_states_merge_in_any_order_and_grouping(state: type[State], data: Any) -> None:
    several = some.lists(UPDATES[state.kind], max_size=6)
    times = some.integers(1, 6)  # clocks of mutators overlap
    a, b, c = (made(state, data.draw(several), mutator, data.draw(times)) for mutator in "abc")
    expected = together(together(a, b), c).encode()
    assert together(a, together(b, c)).encode() == expected
    assert together(c, a, b).encode() == expected
    assert together(b, a).encode() == together(a, b).encode()
    if state.idempotent:
        assert together(a, b, a, b, c, c).encode() == expected
    assert together(state(), a).encode() == a.encode() == together(a, state()).encode()


@pytest.mark.parametrize("state", EXACT, ids=lambda state: state.kind)
@given(data=some.data())
@CASES
def test_exact_states_are_the_same_however_updates_are_spread(state: type[State], data: Any) -> None:
    updates = data.draw(some.lists(UPDATES[state.kind], max_size=12))
    checked = [state.check(update, Stamp(at + 1, f"m{at % 3}")) for at, update in enumerate(updates)]
    alone = state()
    parts = [state(), state(), state()]
    for at, each in enumerate(checked):
        alone.apply(each)
        parts[at % 3].apply(each)
    assert together(*parts).value() == alone.value()


@pytest.mark.parametrize("state", OURS, ids=lambda state: state.kind)
@given(data=some.data())
@CASES
def test_bytes_come_back_as_they_were(state: type[State], data: Any) -> None:
    one = made(state, data.draw(some.lists(UPDATES[state.kind], max_size=8)), "m")
    again = state.decode(one.encode(), state.version)
    assert again.value() == one.value()
    assert not state.exact or again.encode() == one.encode()  # a sketch may lay out its table anew
    assert again.weight() >= 0.9 * len(again.encode()) - 4  # what was read says so, too; an empty one is a head alone


@pytest.mark.parametrize("state", OURS, ids=lambda state: state.kind)
@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xff" * 70, b"no state at all, by no means"])
def test_damaged_bytes_are_never_a_state(state: type[State], data: bytes) -> None:
    with pytest.raises(ValueError):
        state.decode(data, state.version)


@pytest.mark.parametrize("state", OURS, ids=lambda state: state.kind)
def test_a_version_of_the_future_is_refused(state: type[State]) -> None:
    with pytest.raises(Damaged):
        state.decode(state().encode(), state.version + 1)


BAD = {
    "sum": [1.5, "1", True, None, 2**63, -(2**63) - 1, [1]],
    "changes": [1.0, "x", False, 2**64],
    "min": [float("nan"), float("inf"), "1", True, 2**63],
    "max": [float("-inf"), None, [], -(2**70)],
    "last": [None, [1], {"a": 1}, float("nan"), "x" * (MAX_TEXT_BYTES + 1), ""],
    "set": [1.5, "", None, "\ud800", True, 2**63],
    "add_remove_set": ["x", {"add": 1, "remove": 1}, {}, {"put": 1}, {"add": 1.5}, {"remove": None}],
    "hll": [1.5, "", b"x", None],
    "theta": ["", {}, True],
    "quantiles": ["1", float("nan"), None, True],
    "frequent": [
        1,
        "",
        {"item": "x"},
        {"item": "x", "weight": 0},
        {"item": "x", "weight": 1.5},
        {"item": 1, "weight": 1},
    ],
    "queue": [1, None, {"sums": {"puts": 1}}, [{"puts": 1}]],
}


@pytest.mark.parametrize(("kind", "update"), [(kind, update) for kind, updates in BAD.items() for update in updates])
def test_bad_updates_are_refused_in_a_sentence(kind: str, update: object) -> None:
    with pytest.raises(Invalid) as caught:
        Registry().state(kind).check(update, Stamp(1, "m"))
    assert kind in str(caught.value) and len(str(caught.value)) < 300


# ---- sketches: their merges differ in bytes, by how they are stored, by a coin, by what filled a table first. So each
# is held against the truth, within the bound that the sketch itself states (three standard deviations here).


def shuffled(state: type[State], updates: list[Any]) -> list[Any]:
    """The same updates in three mutators, merged in several orders and groupings."""
    a, b, c = (made(state, updates[at::3], "m") for at in range(3))
    return [together(a, b, c), together(c, b, a), together(a, together(b, c)), together(together(c, a), b)]


@pytest.mark.parametrize("state", [Hll, Theta])
@pytest.mark.parametrize("many", [0, 5, 500, 20_000])
def test_distinct_counts_stay_within_their_bound(state: type[State], many: int) -> None:
    updates = [f"element-{at}" for at in range(many)]
    merged = shuffled(state, updates + updates[: many // 2])
    for one in merged:
        assert abs(one.value()["estimate"] - many) <= 3 * 0.02 * many + 1e-3
    again = together(merged[0], merged[1], merged[0])  # idempotent up to the estimator
    assert abs(again.value()["estimate"] - merged[0].value()["estimate"]) <= 3 * 0.02 * many + 1e-3


def test_theta_sketches_intersect() -> None:
    a = made(Theta, [f"e{at}" for at in range(3_000)], "a")
    b = made(Theta, [f"e{at}" for at in range(2_000, 6_000)], "b")
    assert abs(a.intersect(b).value()["estimate"] - 1_000) < 150
    assert together(a, b).intersect(a).value()["estimate"] == pytest.approx(3_000, rel=0.1)


def test_quantiles_stay_within_their_bound() -> None:
    updates = [float((at * 7_919) % 10_000) for at in range(10_000)]
    for one in shuffled(Quantiles, updates):
        assert one.value()["count"] == 10_000
        for value in (100.0, 2_500.0, 5_000.0, 9_900.0):
            assert abs(one.rank(value) - (value + 1) / 10_000) <= 3 * 0.0133


def test_frequent_items_stay_within_their_bound() -> None:
    updates: list[Any] = [f"rare-{at}" for at in range(6_000)] + [{"item": "often", "weight": 500}] * 3
    merged = shuffled(Frequent, updates)
    slack = 7_500 * 3.5 / 2**FREQUENT_LG_K
    for one in merged:
        low, high = one.bounds("often")
        assert low <= 1_500 <= high and high - low <= slack
        assert one.value()["items"][0]["item"] == "often"
        assert one.value()["weight"] == 7_500


def test_a_removed_element_can_be_added_again() -> None:
    one = AddRemoveSet()
    for at, update in enumerate([{"add": "x"}, {"remove": "x"}, {"add": "y"}, {"add": "x"}, {"remove": "y"}]):
        one.apply(AddRemoveSet.check(update, Stamp(at + 1, "m")))
    assert one.value() == ["x"]


# ---- how large they are


def large(kind: str, at: int) -> Any:
    words = f"{at:06}".ljust(250, "é")
    if kind == "add_remove_set":
        return {"add": words}
    return words if kind in ("set", "hll", "theta", "frequent", "last") else at


@pytest.mark.parametrize("state", [state for state in OURS if state.kind != "queue"], ids=lambda state: state.kind)
def test_a_state_says_how_many_bytes_it_makes(state: type[State]) -> None:
    for many in (1, 50, 1_000):
        found = made(state, [large(state.kind, at) for at in range(many)], "m")
        assert found.weight() >= 0.9 * len(found.encode())


@pytest.mark.parametrize("update", [lambda at: 10**12 + at, lambda at: f"user-{at:06}", lambda at: "é" * 200 + str(at)])
@pytest.mark.parametrize("kind", ["set", "add_remove_set"])
def test_a_set_says_how_much_memory_it_takes(kind: str, update: Any) -> None:
    state = Registry().state(kind)
    for many in (500, 3_000, 10_000):
        tracemalloc.start()
        try:
            updates = [update(at) for at in range(many)]
            found = made(state, [{"add": one} for one in updates] if kind == "add_remove_set" else updates, "m")
            del updates
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert 0.6 * taken < found.memory() < 2 * taken


# ---- the registry


class Product(State):
    """A state of one's own."""

    kind = "product"
    takes = "a whole number"

    def __init__(self, product: int = 1) -> None:
        self.product = product

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> Any:
        return update

    def apply(self, checked: Any) -> None:
        self.product *= checked

    def merge(self, other: Product) -> None:
        self.product *= other.product

    def value(self) -> int:
        return self.product

    def encode(self) -> bytes:
        return str(self.product).encode()

    @classmethod
    def decode(cls, data: bytes, version: int) -> Product:
        return cls(int(data))


def test_a_state_of_ones_own_is_found_by_entry_point(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "own_states-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own-states\nVersion: 1\n")
    points = "[test.counter_states]\nown = own_states:Own\nbroken = own_states:Missing\n"
    (package / "entry_points.txt").write_text(points)
    (tmp_path / "own_states.py").write_text(
        "from capellini.counters.states.total import Sum\nclass Own(Sum):\n    kind = 'own'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry(group="test.counter_states")
    assert registry.state("own").kind == "own"
    with pytest.raises(Invalid, match="Missing"):
        registry.state("broken")
    with pytest.raises(Invalid, match=r"there are .*sum.*; own_states:Missing cannot be used"):
        registry.state("nothing")


def test_a_kind_is_taken_once() -> None:
    assert Registry(more=[Product]).state("product") is Product
    other = type("Other", (Product,), {})
    with pytest.raises(ValueError, match="product"):
        Registry(more=[Product, other])
