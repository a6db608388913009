"""States by name: those that come with Capellini, and those that installed packages bring (entry-point group below).

A package that cannot be loaded takes nothing else down: its states are missing, and whoever asks for one is told why.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Final

from capellini.counters.states.changes import Changes
from capellini.counters.states.distinct import Hll, Theta
from capellini.counters.states.extremes import Max, Min
from capellini.counters.states.interface import State
from capellini.counters.states.last import Last
from capellini.counters.states.queue import QueueTotals
from capellini.counters.states.sets import AddRemoveSet, GrowSet
from capellini.counters.states.spread import Frequent, Quantiles
from capellini.counters.states.total import Sum
from capellini.model.errors import Invalid

GROUP: Final = "capellini.counter_states"
OURS: Final[tuple[type[State], ...]] = (
    Sum, Changes, Min, Max, Last, GrowSet, AddRemoveSet, Hll, Theta, Quantiles, Frequent, QueueTotals,
)  # fmt: skip


class Registry:
    """Which states there are. `more` are a program's own."""

    def __init__(self, more: Iterable[type[State]] = (), group: str = GROUP) -> None:
        self._states: dict[str, type[State]] = {state.kind: state for state in OURS}
        self._broken: dict[str, str] = {}
        for state in more:
            self._take(state)
        for point in entry_points(group=group):
            try:
                self._take(point.load())
            except Exception as error:  # whatever a foreign package raises while it is imported
                self._broken[point.name] = f"{point.value} cannot be used: {error}"

    def _take(self, state: type[State]) -> None:
        if not (isinstance(state, type) and issubclass(state, State)):
            raise TypeError(f"{state!r} is not a counter state")
        if missing := sorted(state.__abstractmethods__):
            raise TypeError(f"it has no {', '.join(missing)}")
        if self._states.get(state.kind, state) is not state:
            raise ValueError(f"there is a counter state {state.kind!r} already")
        self._states[state.kind] = state

    def kinds(self) -> list[str]:
        return sorted(self._states)

    def state(self, kind: str) -> type[State]:
        """Raises Invalid."""
        found = self._states.get(kind) if isinstance(kind, str) else None
        if found is None:
            why = self._broken.get(kind) if isinstance(kind, str) else None
            there = "; ".join([", ".join(self.kinds()), *self._broken.values()])  # a kind may have another name there
            raise Invalid(why or f"{kind!r:.120} is no state of counters: there are {there}")
        return found
