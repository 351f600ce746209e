"""Which cluster's fence it is that nobody serves a shard, when others keep it from moves before."""

from __future__ import annotations

from cellfeed.store.clusters.model.shard_notes import Arriving, Leaving, MasterNotes
from cellfeed.store.clusters.moves.underway import fence_of


def told(*, leaves_to: str | None = None, arrives_from: str | None = None) -> MasterNotes:
    leaving = {7: Leaving(leaves_to, 1, 0, 10, 0, 0, 0, "2020-01-01")} if leaves_to else {}
    return MasterNotes({}, {7: Arriving(arrives_from, 1, 10)} if arrives_from else {}, leaving, {})


def test_the_fence_is_the_one_whose_target_has_the_note_in_any_order_of_the_clusters() -> None:
    clusters = {"a": told(leaves_to="b"), "b": told(leaves_to="c"), "c": told(arrives_from="b")}
    for order in (["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]):
        fence = fence_of({name: clusters[name] for name in order}, 7)
        assert fence is not None
        assert fence[0] == "b"


def test_a_note_cleaned_half_way_misleads_no_reader() -> None:
    clusters = {
        "a": told(leaves_to="b"),
        "b": told(),
        "c": told(leaves_to="d"),
        "d": told(arrives_from="c"),
    }
    fence = fence_of(clusters, 7)
    assert fence is not None
    assert fence[0] == "c"


def test_without_a_note_the_source_is_the_node_whose_targets_log_did_not_advance() -> None:
    fence = fence_of({"a": told(leaves_to="b"), "b": told(leaves_to="c"), "c": told()}, 7)
    assert fence is not None
    assert fence[0] == "b"
    assert fence_of({"a": told()}, 7) is None
