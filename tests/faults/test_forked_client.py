"""A client on both sides of a fork: every answer is one to its question. With the mends undone the
same run finds that it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.fork_run import FORKS_BRIEF, run_fork_faults

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


def test_parent_and_child_of_a_fork_each_get_the_own_answers(tmp_path: Path) -> None:
    result = run_fork_faults("forked-client", 1, tmp_path, FORKS_BRIEF)
    assert len(result.witnessed) == FORKS_BRIEF, "nobody forked under load"
    assert result.operations_inside > 0, "nothing ran meanwhile"
    assert {name: found for name, found in result.violations.items() if found} == {}


def test_the_run_finds_a_planted_connection_that_a_fork_shares(tmp_path: Path) -> None:
    for seed in range(1, 6):  # whether two requests meet on a connection is chance
        result = run_fork_faults(
            "forked-client",
            seed,
            tmp_path / str(seed),
            FORKS_BRIEF,
            without=("forks", "numbers", "contents"),
        )
        assert len(result.witnessed) == FORKS_BRIEF
        if result.violations["I3"]:
            break
    assert result.violations["I3"]
    assert not result.passed


@pytest.mark.parametrize(
    ("kept", "held"), [("numbers", ("I2", "I3", "I4")), ("contents", ("I2", "I3"))]
)
def test_on_a_shared_connection_either_check_keeps_other_callers_cells_away(
    tmp_path: Path, kept: str, held: tuple[str, ...]
) -> None:
    without = [mend for mend in ("forks", "numbers", "contents") if mend != kept]
    result = run_fork_faults("forked-client", 1, tmp_path, FORKS_BRIEF, without=without)
    assert {name: result.violations[name] for name in held} == {name: [] for name in held}
