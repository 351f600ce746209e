"""``python -m tests.mutants [--area store/engines] [--name NAME] [--sample 40 [--seed 7]]``: exit 0
when every bug is killed or accepted, else 1. The last line has the rate of kills."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.mutants.planted import mistakes, mutants, sampled
from tests.mutants.results import RESULTS, Results
from tests.mutants.runs import TIME_LIMIT_S, Verdict, copied_tree, run_mutant, run_tests

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Plants known bugs one at a time; the tests of each must fail.",
    )
    parser.add_argument(
        "--area",
        choices=sorted({each.area for each in mutants()}),
        help="only the bugs of one area",
    )
    parser.add_argument(
        "--name", action="append", help="only this bug (may be given several times)"
    )
    parser.add_argument(
        "--sample", type=int, help="only so many, drawn by chance; the draw's seed is printed"
    )
    parser.add_argument("--seed", type=int, help="of the draw: repeats an earlier one")
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        help="results are appended here, one JSON object a line (default: %(default)s)",
    )
    parser.add_argument(
        "--time-limit-s",
        type=float,
        default=TIME_LIMIT_S,
        help="for the tests of one bug (default: %(default)s)",
    )
    parser.add_argument(
        "--unproven", action="store_true", help="do not run the tests without any bug first"
    )
    asked = parser.parse_args(arguments)
    if wrong := list(mistakes(mutants(), ROOT)):
        print("\n".join(wrong), file=sys.stderr)
        return 1
    chosen = [each for each in mutants(asked.area) if asked.name is None or each.name in asked.name]
    if not chosen:
        print("no planted bug has that name", file=sys.stderr)
        return 2
    if asked.sample is not None and asked.sample < len(chosen):
        seed = random.randrange(10**6) if asked.seed is None else asked.seed
        print(f"sample of {asked.sample} of {len(chosen)}, seed {seed}", flush=True)
        chosen = sampled(chosen, asked.sample, seed)
    results = Results(ROOT, asked.results)
    with copied_tree(ROOT) as copy:
        if not asked.unproven:
            tests = sorted({test for each in chosen for test in each.tests})
            sound = run_tests(copy, tests, asked.time_limit_s * len(tests))
            if sound.verdict is not Verdict.SURVIVED:
                print(
                    "the tests do not pass without a planted bug, so they prove nothing:"
                    f" {sound.by}",
                    file=sys.stderr,
                )
                return 1
        for each in chosen:
            outcome = run_mutant(copy, each, asked.time_limit_s)
            results.add(each, outcome)
            print(
                f"{outcome.verdict:9}{outcome.seconds:6.1f} s  {each.area}  {each.name} "
                f" ({outcome.by})",
                flush=True,
            )
    return _conclude(results)


def _conclude(results: Results) -> int:
    """Prints every mistake, the rate of each area, and the rate of all."""
    bad = 0
    for each, outcome in results.outcomes.items():
        if outcome.verdict is Verdict.SURVIVED and each.accepted is not None:
            print(f"accepted survivor {each.name}: {each.accepted}")
        elif outcome.verdict is Verdict.KILLED and each.accepted is not None:
            print(
                f"{each.name} is on the list of accepted survivors, and a test finds it: take the"
                " reason out"
            )
            bad += 1
        elif outcome.verdict is not Verdict.KILLED:
            print(f"{outcome.verdict.upper()} {each.name}: {each.why} ({outcome.by})")
            bad += 1
    for area in sorted({each.area for each in results.outcomes}):
        print(f"{area}: {results.rate(area)}")
    print(results.rate())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
