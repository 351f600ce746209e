"""The command line: ``python -m docs.inside.cluster_model``."""

from __future__ import annotations

import argparse
import sys
import time

from docs.inside.cluster_model.scenarios import PLANTS, SCENARIOS, small
from docs.inside.cluster_model.search import Found, search
from docs.inside.cluster_model.state import Rules


def main(arguments: list[str] | None = None) -> int:
    """0 when the design has no violation, and every planted fault that was asked for is found."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.inside.cluster_model", description=__doc__
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="two faults instead of one in each search: a minute or two",
    )
    parser.add_argument(
        "--plant",
        choices=[*PLANTS, "all"],
        help="break one rule of the design, and print how it fails",
    )
    chosen = parser.parse_args(arguments)
    if chosen.plant:
        names = list(PLANTS) if chosen.plant == "all" else [chosen.plant]
        return max(_plant(name) for name in names)
    return _design(deep=chosen.deep)


def _design(*, deep: bool) -> int:
    began_s, states, wrong = time.monotonic(), 0, 0
    for scenario in SCENARIOS.values():
        found = search(scenario if deep else small(scenario), Rules())
        states += found.states
        wrong += bool(found.violation)
        _print(f"{scenario.name}: {scenario.about}", found)
    print(
        f"{states} states in {time.monotonic() - began_s:.1f} s, {wrong} searches with a violation"
    )
    return 1 if wrong else 0


def _plant(name: str) -> int:
    plant = PLANTS[name]
    found = search(SCENARIOS[plant.scenario], plant.rules)
    _print(f"{name}: {plant.about} (search {plant.scenario!r})", found)
    return 0 if found.violation else 1


def _print(title: str, found: Found) -> None:
    print(title)
    print(f"    {found.states} states, {found.violation or 'no violation'}")
    for number, label in enumerate(found.trace, 1):
        print(f"    {number:2} {label}")


if __name__ == "__main__":
    sys.exit(main())
