"""Dictionaries of clusters: a master without one is refused, and a retirement that a promotion
overtook takes nothing away. Clusters are values here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.dictionaries import (
    ClusteredDictionaries,
    _take_away,
    refuse_lost_on_master,
)
from cellfeed.store.errors import DictionaryLost, StorageUnavailable

LOST = DictionaryLost("dictionary 7 is nowhere")


class Cluster:
    """``master``: None while no node reports it. ``refused``: nodes with the reason."""

    name = "c1"

    def __init__(self, master: str | None, refused: Mapping[str, Exception]) -> None:
        self._master = master
        self.nodes = {
            name: SimpleNamespace(name=name, refused=refused.get(name)) for name in ("a", "b", "c")
        }

    def role(self) -> Role:
        if self._master is None:
            raise StorageUnavailable("no node reports the master")
        return Role(self.name, self._master, 1)


def refuse(master: str | None, refused: Mapping[str, Exception]) -> None:
    refuse_lost_on_master(cast("Any", Cluster(master, refused)))


def test_a_master_without_a_dictionary_is_refused_and_a_minion_alone_is_not() -> None:
    with pytest.raises(DictionaryLost, match="cluster c1, node a: dictionary 7 is nowhere"):
        refuse("a", {"a": LOST})
    refuse("a", {"b": LOST, "c": LOST})
    refuse("a", {})


def test_where_no_node_reports_the_master_each_refused_node_may_be_it() -> None:
    with pytest.raises(DictionaryLost, match="node c: "):
        refuse(None, {"c": LOST})
    for others in ({}, {"a": StorageUnavailable("away")}):
        with pytest.raises(StorageUnavailable, match="no node reports"):
            refuse(None, others)


def test_a_promotion_between_the_steps_of_a_retirement_leaves_the_content() -> None:
    taken: list[int] = []
    engine: Any = SimpleNamespace(
        dictionaries=SimpleNamespace(take_away=lambda number, *_: taken.append(number))
    )
    with pytest.raises(StorageUnavailable, match="nothing removed: b was promoted"):
        _take_away(engine, 7, Role("c1", "b", 2), 1)
    assert taken == []
    _take_away(engine, 7, Role("c1", "b", 2), 2)
    assert taken == [7]


class Kept:
    """The dictionaries of one cluster. ``turns``: the current one of each column."""

    def __init__(self, contents: dict[int, str], turns: dict[str, int]) -> None:
        self.contents, self.turns = contents, turns
        self.dictionaries = self

    def write(self, what: Callable[[Any, Any], Any], *_: object) -> Any:
        return what(self, SimpleNamespace(terms=None))

    def kept(self) -> list[Any]:
        return [
            SimpleNamespace(dictionary_id=number, content_bytes=len(content))
            for number, content in self.contents.items()
        ]

    def current(self) -> dict[str, Any]:
        return {name: SimpleNamespace(dictionary_id=number) for name, number in self.turns.items()}

    def add(self, dictionary: Any, _: object) -> None:
        self.contents[dictionary.number] = dictionary.content


def test_clusters_get_the_contents_and_turns_that_a_kill_kept_from_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided = Kept({1: "one", 2: "two", 3: ""}, {"BASE": 2, "FARE": 1})
    late, well = Kept({1: "one"}, {"BASE": 1}), Kept({1: "one", 2: "two"}, {"BASE": 2, "FARE": 1})
    taken: list[tuple[Kept, int]] = []
    monkeypatch.setattr(
        "cellfeed.store.clusters.serving.dictionaries._take",
        lambda cluster, dictionary: taken.append((cluster, dictionary.number)),
    )
    store = ClusteredDictionaries(cast("Any", [decided, late, well]))
    monkeypatch.setattr(
        store,
        "find",
        lambda number: SimpleNamespace(number=number, content=decided.contents[number]),
    )
    monkeypatch.setattr(store, "add", lambda _: None)
    store.complete()
    assert late.contents == well.contents == {1: "one", 2: "two"}
    assert taken == [(late, 2), (late, 1)]
