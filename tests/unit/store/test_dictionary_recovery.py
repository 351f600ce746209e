"""A lost dictionary is recovered from the very same content, and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.dictionaries.recovery import Place, recover
from cellfeed.store.engines.contract.dictionaries import (
    Condition,
    DictionaryTable,
    KeptDictionary,
)
from cellfeed.store.errors import DictionaryLost, InvalidRequest


def dictionary(content: bytes) -> Dictionary:
    return Dictionary("BASE", content, 1, 600)


ONE, TWO = dictionary(b"one"), dictionary(b"two")


@dataclass
class SameId:
    """Another content under an id that is taken."""

    dictionary_id: int
    sha256: bytes = b"another"


@dataclass
class Table:
    """``lost``: the dictionaries that the table lacks; ``unused``: those among them that no column
    was given."""

    has: dict[int, Any] = field(default_factory=dict)
    lost: list[Dictionary] = field(default_factory=list)
    unused: list[Dictionary] = field(default_factory=list)
    restored: list[Dictionary] = field(default_factory=list)

    def kept(self) -> list[KeptDictionary]:
        return [
            KeptDictionary(
                each.dictionary_id,
                "BASE",
                Condition.MISSING,
                each.sha256,
                () if each in self.unused else (0,),
                0,
                0,
                0,
            )
            for each in self.lost
        ] + [
            KeptDictionary(number, "BASE", Condition.WHOLE, each.sha256, (0,), 1, 600, 3)
            for number, each in self.has.items()
        ]

    def find(self, dictionary_id: int) -> Any:
        return self.has.get(dictionary_id)

    def restore(self, dictionary: Dictionary) -> None:
        self.restored.append(dictionary)


def place(cluster: str, node: str, table: Table) -> Place:
    return Place(cluster, node, cast("DictionaryTable", table))


def having(*dictionaries: Dictionary) -> Table:
    return Table({each.dictionary_id: each for each in dictionaries})


def test_a_lost_dictionary_is_restored_from_the_file_or_else_from_another_node() -> None:
    hurt = Table(lost=[ONE, TWO])
    done = recover([place("c1", "a", hurt), place("c1", "b", having(ONE, TWO))], [TWO])
    assert hurt.restored == [ONE, TWO]
    assert [(each.name, each.place, each.source) for each in done] == [
        (ONE.name, "c1/a", "c1/b"),
        (TWO.name, "c1/a", "the file"),
    ]


def test_another_content_of_the_same_id_is_never_restored() -> None:
    hurt, other = Table(lost=[ONE]), Table({ONE.dictionary_id: SameId(ONE.dictionary_id)})
    in_file = cast("Dictionary", SameId(ONE.dictionary_id))
    with pytest.raises(DictionaryLost, match=f"{ONE.name} of column 'BASE' on c1/a"):
        recover([place("c1", "a", hurt), place("c1", "b", other)], [in_file])
    assert hurt.restored == []


def test_a_dictionary_without_any_copy_is_named_after_all_others_were_restored() -> None:
    first, second = Table(lost=[ONE, TWO]), Table(lost=[ONE, TWO])
    with pytest.raises(DictionaryLost, match=r"on c1/a, .* on c1/b is whole nowhere"):
        recover([place("c1", "a", first), place("c1", "b", second)], [TWO])
    assert first.restored == second.restored == [TWO]


def test_a_lost_dictionary_that_was_never_in_use_needs_no_copy() -> None:
    hurt = Table(lost=[ONE], unused=[ONE])
    assert recover([place("", "store", hurt)]) == []
    assert hurt.restored == []


def test_a_dictionary_is_restored_only_from_the_named_cluster() -> None:
    hurt = Table(lost=[ONE])
    places = [place("c1", "a", hurt), place("c1", "b", having(ONE)), place("c2", "d", Table())]
    with pytest.raises(DictionaryLost):
        recover(places, from_cluster="c2")
    with pytest.raises(InvalidRequest, match="no node of a cluster 'c3' answers; there are c1, c2"):
        recover(places, from_cluster="c3")
    assert [each.source for each in recover(places, from_cluster="c1")] == ["c1/b"]
