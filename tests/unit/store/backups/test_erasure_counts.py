"""The count of erasures in a shard's head differs after every step that takes a body, or kept
copies of it would stay."""

from __future__ import annotations

from uuid import UUID

from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import ErasedStep

ROW = UUID(int=5)


def test_only_a_step_that_removes_a_body_changes_the_count(
    datastore: Datastore,
) -> None:
    datastore.put_cells([(ROW, "BASE", number, {"n": number}) for number in range(5)])
    counts: list[int] = []
    steps: list[ErasedStep] = []
    while not steps or not steps[-1].done:
        steps.append(datastore.engine.erase(ROW.bytes, 2))
        counts.append(datastore.heads()[steps[-1].shard].erasures)
    assert [step.cells for step in steps] == [2, 2, 1]
    assert counts == sorted(set(counts)), "each step has a count of its own"
    again = datastore.engine.erase(ROW.bytes, 2)
    assert (again.cells, again.done) == (0, True)
    assert datastore.heads()[again.shard].erasures == counts[-1]
