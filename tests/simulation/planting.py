"""Planted bugs: each takes one guard out of the code. A simulation that does not find them proves nothing.

A plant replaces functions of the code while it is planted; what it breaks is said by its promises. Each kind of
simulation has a bed of them. The seeds at which each is found are in `seeds/KIND.json`; `python -m
tests.simulation.find_plants KIND` finds them anew when a change of the code has shifted what happens at which seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from capellini.proof.suites import one

Patch = Callable[[Any, str, Any], None]
Planting = Callable[[Patch], None]
MISSING = object()


class Plant(NamedTuple):
    name: str
    promises: tuple[int, ...]  # any of these must be found broken
    plant: Planting


class Bed:
    """The plants of one kind of simulation. Called with promises it adds the function that follows."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.plants: list[Plant] = []
        self._file = Path(__file__).parent / "seeds" / f"{kind}.json"

    def __call__(self, *promises: int) -> Callable[[Planting], Planting]:
        def kept(plant: Planting) -> Planting:
            self.plants.append(Plant(plant.__name__, promises, plant))
            return plant

        return kept

    def named(self, name: str) -> Plant:
        (found,) = [plant for plant in self.plants if plant.name == name]
        return found

    def seeds_of(self, name: str) -> list[int]:
        return self._known().get(name, [])

    def found_at(self, plant: Plant, seed: int) -> bool:
        with planted(plant):
            try:
                result = one(self.kind, seed)
            except Exception:  # a plant may break the run itself; that is not how it should be found
                return False
        return any(violation.promise in plant.promises for violation in result.violations)

    def write_down(self, name: str, seeds: list[int]) -> None:
        known = {plant.name: self.seeds_of(plant.name) for plant in self.plants} | {name: seeds}
        self._file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")

    def _known(self) -> dict[str, list[int]]:
        return json.loads(self._file.read_text()) if self._file.exists() else {}


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    before: list[tuple[Any, str, Any]] = []

    def patch(where: Any, name: str, value: Any) -> None:
        before.append((where, name, where.__dict__.get(name, MISSING)))
        setattr(where, name, value)

    try:
        plant.plant(patch)
        yield
    finally:
        for where, name, value in reversed(before):
            if value is MISSING:
                delattr(where, name)
            else:
                setattr(where, name, value)
