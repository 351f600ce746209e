"""The lists of planted bugs fit the code, and the runner tells a killed one from a survivor and
from a run that says nothing."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.planted import Mutant, mistakes, mutants, sampled
from tests.mutants.results import Results
from tests.mutants.runs import Outcome, Verdict, copied_tree, run_mutant

ROOT = Path(__file__).parents[3]
CODE = "def double(number: int) -> int:\n    return number * 2\n"
TESTS = (
    "import pytest\nfrom code_under_test import double\ndef test_it(): assert double(3) == 6\ndef"
    " test_skips(): pytest.skip('no server')\n"
)


def test_every_planted_bug_fits_the_code_exactly_once_and_names_existing_tests() -> None:
    assert list(mistakes(mutants(), ROOT)) == []


def mutant(
    old: str = "number * 2", new: str = "number * 3", test: str = "test_it.py::test_it"
) -> Mutant:
    return Mutant("area", "name", "code_under_test.py", old, new, (test,), "a why")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "code_under_test.py").write_text(CODE)
    (tmp_path / "test_it.py").write_text(TESTS)
    return tmp_path


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (mutant(old="number"), "2 times"),
        (mutant(old="nothing"), "0 times"),
        (mutant(new="number * 2"), "the same"),
        (mutant(new="number * ("), "no Python"),
        (mutant(test="test_it.py::test_gone"), "no test"),
    ],
)
def test_an_entry_that_does_not_fit_is_named(tree: Path, wrong: Mutant, says: str) -> None:
    [mistake] = mistakes([wrong], tree)
    assert says in mistake


@pytest.mark.integration
@pytest.mark.parametrize(
    ("planted", "verdict"),
    [
        (mutant(), Verdict.KILLED),
        (mutant(new="2 * number"), Verdict.SURVIVED),
        (mutant(new="number * ("), Verdict.ERROR),
        (mutant(test="test_it.py::test_skips"), Verdict.ERROR),
    ],
)
def test_a_mutants_run_reports_killed_survived_or_undecided_and_leaves_the_tree_unchanged(
    tree: Path, planted: Mutant, verdict: Verdict
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    with copied_tree(tree) as copy:
        assert run_mutant(copy, planted).verdict is verdict
        assert (copy / planted.file).read_text() == CODE
    assert (tree / planted.file).read_text() == CODE


@pytest.mark.integration
def test_a_copy_of_the_tree_runs_its_own_code_and_not_the_originals() -> None:
    with copied_tree(ROOT) as copy:
        assert (copy / "cellfeed" / "store").resolve() == (copy / "store").resolve()


@pytest.mark.integration
def test_results_are_written_down_at_once_and_give_the_rate_of_kills(tree: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(
        ["git", *identity, "commit", "-q", "--allow-empty", "-m", "t"], cwd=tree, check=True
    )
    kept = tree / "build" / "mutants.jsonl"
    results = Results(tree, kept)
    verdicts = [Verdict.KILLED, Verdict.SURVIVED, Verdict.KILLED]
    for number, verdict in enumerate(verdicts):
        results.add(replace(mutant(), name=str(number)), Outcome(verdict, "by", 1.25))
        assert len(kept.read_text().splitlines()) == number + 1
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["verdict"] for line in lines] == ["killed", "survived", "killed"]
    assert all(line["changed"] and len(line["commit"]) == 40 for line in lines)
    assert results.rate() == results.rate("area") == "killed 2 of 3 (66 %)"


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    assert sampled(mutants(), 5, 7) == sampled(mutants(), 5, 7) != sampled(mutants(), 5, 8)
