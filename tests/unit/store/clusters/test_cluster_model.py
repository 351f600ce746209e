"""The model of clusters: the design has no violation, and each planted fault has one, with a short
way to it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from docs.inside.cluster_model.__main__ import main
from docs.inside.cluster_model.scenarios import PLANTS, SCENARIOS, small
from docs.inside.cluster_model.search import TooManyStatesError, search
from docs.inside.cluster_model.state import Rules

STATES_MIN = 500
"""A search that visits fewer has lost its steps, and shows nothing."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_design_has_no_violation(name: str) -> None:
    found = search(small(SCENARIOS[name]), Rules())
    assert not found.violation, "\n".join([found.violation, *found.trace])
    assert found.states >= STATES_MIN


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found_and_its_trace_printed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--plant", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "no violation" not in lines[1]
    assert 3 <= len(lines[2:]) <= 20, lines


def test_every_rule_of_the_design_is_broken_by_a_planted_fault() -> None:
    broken = {
        field.name
        for field in fields(Rules)
        for plant in PLANTS.values()
        if getattr(plant.rules, field.name) != field.default
    }
    assert broken == {field.name for field in fields(Rules)}


def test_a_search_that_is_cut_off_shows_nothing() -> None:
    with pytest.raises(TooManyStatesError, match="more than 100 states"):
        search(SCENARIOS["puts"], Rules(), states_max=100)


def test_a_search_visits_the_same_states_each_time() -> None:
    plant = PLANTS["switch-does-not-wait"]
    assert search(SCENARIOS[plant.scenario], plant.rules) == search(
        SCENARIOS[plant.scenario], plant.rules
    )
