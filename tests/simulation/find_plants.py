"""Find seeds at which each planted bug is found and the code without it is clean; writes `seeds/KIND.json`.

python -m tests.simulation.find_plants KIND [--upto 400] [NAME ...]
"""

from __future__ import annotations

import argparse
import importlib
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import islice

from tests.simulation.planting import Bed

from capellini.proof.suites import SUITES, one

WANTED = 2  # seeds per plant: one may shift


def bed_of(kind: str) -> Bed:
    bed: Bed = importlib.import_module(f"tests.simulation.{kind.removesuffix('s')}_plants").plants
    return bed


def seeds_for(kind: str, name: str, known: list[int], upto: int) -> tuple[str, list[int]]:
    bed = bed_of(kind)
    plant = bed.named(name)
    tried = dict.fromkeys((*known, *range(1, upto + 1)))  # what found it before comes first
    good = (seed for seed in tried if bed.found_at(plant, seed) and not one(kind, seed).violations)
    return name, list(islice(good, WANTED))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(set(SUITES) - {"store"}))
    parser.add_argument("--upto", type=int, default=400)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_intermixed_args()
    bed = bed_of(arguments.kind)
    names = arguments.names or [plant.name for plant in bed.plants]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        known = [list(bed.seeds_of(name)) for name in names]
        tasks = [pool.submit(seeds_for, arguments.kind, *one, arguments.upto) for one in zip(names, known, strict=True)]
        for task in tasks:
            name, seeds = task.result()
            print(name, seeds or "NOT FOUND", flush=True)
            bed.write_down(name, seeds)


if __name__ == "__main__":
    main()
