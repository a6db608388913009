"""Find seeds at which each planted bug is found and the code without it is clean; writes `planted_seeds.json`.

python -m tests.simulation.find_plants [--upto 300] [--wanted 2] [NAME ...]
"""

from __future__ import annotations

import argparse
import json

from tests.simulation.planted import PLANTS, SEEDS, Plant, planted

from capellini.proof.suites import one


def found_at(plant: Plant, seed: int) -> bool:
    with planted(plant):
        try:
            result = one("work", seed)
        except Exception:  # a plant may break the run itself; that is not how it should be found
            return False
    return any(violation.promise in plant.promises for violation in result.violations)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--upto", type=int, default=300)
    parser.add_argument("--wanted", type=int, default=2, help="seeds per plant: more outlive more changes of the code")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    known = json.loads(SEEDS.read_text()) if SEEDS.exists() else {}
    known = {plant.name: known.get(plant.name, []) for plant in PLANTS}
    clean: dict[int, bool] = {}
    for plant in PLANTS:
        if arguments.names and plant.name not in arguments.names:
            continue
        seeds: list[int] = []
        for seed in range(1, arguments.upto + 1):
            if found_at(plant, seed):
                if seed not in clean:
                    clean[seed] = not one("work", seed).violations
                if clean[seed]:
                    seeds.append(seed)
                if len(seeds) == arguments.wanted:
                    break
        print(plant.name, seeds or "NOT FOUND", flush=True)
        known[plant.name] = seeds
        SEEDS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
