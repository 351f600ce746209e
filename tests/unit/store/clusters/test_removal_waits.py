"""A trim or an erasure of a cluster ends once a minion has it: by reports from after it began, by
minions of its own master, and by no other one's."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving import cluster as cluster_module
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.engines.contract.values import ErasedStep
from cellfeed.store.errors import OutcomeUnknown
from tests.support.stand_in_nodes import ROLE, Node

PROMOTED = Role("c1", "c", 2, ["a", "b"])
OTHER_MASTER = Role("c1", "z", 0, ["b", "c"])
"""Of before: a node that reports it has not heard of the master, and holds another one's log."""

ROW = bytes(16)
TRIMMED, ERASED = 5, 1


class Report(Enum):
    """The deed of a minion before a look."""

    SILENT = auto()
    SAME = auto()
    HAS_IT = auto()
    HAS_IT_FROM_ANOTHER_MASTER = auto()


class Look(NamedTuple):
    """The reports that one look brings. ``moved``: the master's has no such shard."""

    master_reports: bool
    minions: tuple[Report, Report]
    promoted: bool = False
    moved: bool = False


class StillWaits(Exception):
    """All looks were made, and it waits for another."""


LOOKS = st.lists(
    st.builds(
        Look,
        st.booleans(),
        st.tuples(st.sampled_from(Report), st.sampled_from(Report)),
        st.integers(0, 9).map(lambda drawn: drawn == 0),
        st.integers(0, 9).map(lambda drawn: drawn == 0),
    ),
    max_size=8,
)


class Master:
    """The engine of node a. An erasure and a trim happen at once."""

    name = "a"

    def trim(self, *_: object) -> int:
        return TRIMMED

    def erase(self, *_: object) -> ErasedStep:
        return ErasedStep(0, 10, 0, done=True)


def removed(looks: Sequence[Look], kind: str, minions: Sequence[str] = ("b", "c")) -> int:
    """Trims or erases in a cluster whose nodes report so; the looks that it took. Raises
    StillWaits."""
    nodes = {name: Node(name) for name in ("a", *minions)}
    made = Cluster("c1", [cast("StorageNode", node) for node in nodes.values()], [0])
    role = ROLE if minions else Role("c1", "a", 1)
    for node in nodes.values():
        node.says(10, role)
    nodes["a"].engine = Master()
    script, taken = iter(looks), 0
    has_it = {"log_start": TRIMMED} if kind == "trim" else {"erasures": ERASED}
    state: dict[str, tuple[Role, dict[str, int]]] = {name: (ROLE, {}) for name in minions}

    def report() -> None:
        nonlocal taken
        look = next(script, None)
        if look is None:
            raise StillWaits
        taken += 1
        if look.master_reports:
            nodes["a"].says(10, role, **has_it)
            if look.moved:
                nodes["a"].view = NodeView(role, {})
        for name, each in zip(minions, look.minions, strict=False):
            if each is Report.HAS_IT:
                state[name] = ROLE, has_it
            elif each is Report.HAS_IT_FROM_ANOTHER_MASTER:
                state[name] = OTHER_MASTER, has_it
            if each is not Report.SILENT:
                nodes[name].says(10, state[name][0], **state[name][1])
        if look.promoted:
            nodes["c" if "c" in nodes else "a"].on_role(PROMOTED)

    def begin() -> None:
        nodes["a"].on_look = report  # the first of the nodes that a look waits for

    nodes["a"].after_call = begin
    if kind == "trim":
        made.trim(0, TRIMMED, 100)
    else:
        made.erase(ROW, 100)
    return taken


def expected(looks: Sequence[Look]) -> int | type[Exception]:
    """The look after which it ends, or how it fails."""
    wanted, followers = False, {0: False, 1: False}
    for number, look in enumerate(looks, 1):
        for minion, each in enumerate(look.minions):
            if each in (Report.HAS_IT, Report.HAS_IT_FROM_ANOTHER_MASTER):
                followers[minion] = each is Report.HAS_IT
        if look.promoted:
            return OutcomeUnknown
        if look.master_reports and not wanted:
            if look.moved:
                return OutcomeUnknown
            wanted = True
        if wanted and any(followers.values()):
            return number
    return StillWaits


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_PAUSE_S", 0)


@pytest.mark.parametrize("kind", ["trim", "erase"])
@given(looks=LOOKS)
def test_a_removal_ends_with_the_first_report_that_proves_it(kind: str, looks: list[Look]) -> None:
    match expected(looks):
        case int(number):
            assert removed(looks, kind) == number
        case error:
            with pytest.raises(error):
                removed(looks, kind)


@pytest.mark.parametrize("kind", ["trim", "erase"])
@pytest.mark.parametrize(
    "look",
    [
        pytest.param(Look(False, (Report.SAME,) * 2), id="the master's report of before"),
        pytest.param(Look(True, (Report.HAS_IT_FROM_ANOTHER_MASTER,) * 2), id="another master's"),
        pytest.param(Look(True, (Report.SAME, Report.SILENT)), id="minions that lack it"),
    ],
)
def test_no_other_report_ends_a_removal(look: Look, kind: str) -> None:
    with pytest.raises(StillWaits):
        removed([look] * 3, kind)


@pytest.mark.parametrize("kind", ["trim", "erase"])
def test_a_removal_without_minions_ends_with_a_report_of_its_master(kind: str) -> None:
    silent, reports = Look(False, (Report.SILENT,) * 2), Look(True, (Report.SILENT,) * 2)
    assert removed([silent, silent, reports], kind, minions=()) == 3


@pytest.mark.parametrize("kind", ["trim", "erase"])
def test_a_removal_that_no_minion_has_in_time_may_be_undone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "MINION_WAIT_S", 0)
    with pytest.raises(OutcomeUnknown, match="a promotion may undo it; repeat it"):
        removed([Look(True, (Report.SAME, Report.SAME))] * 3, kind)
