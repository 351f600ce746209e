"""How the bodies of a put to a MySQL master are encoded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from cellfeed.store.cells.body_codec import DEFAULT_CODEC
from cellfeed.store.cells.body_encoding import encode_cells
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.engines.contract.dictionaries_of_puts import DictionariesOfPuts
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries

Encode = Callable[[Sequence[NewCell]], Sequence[bytes]]
"""Makes the stored bodies of cells."""


class Encoding(NamedTuple):
    """How a put's bodies are encoded, and with which dictionaries, by their ids: these must be in
    use still when the put holds its locks."""

    encode: Encode
    dictionary_ids: frozenset[int]


class PutEncoding:
    """The encoding of puts to one server. ``codec``: of bodies without a dictionary."""

    def __init__(self, dictionaries: MySqlDictionaries, codec: int) -> None:
        self._dictionaries = DictionariesOfPuts(dictionaries)
        dictionaries.on_use = self._dictionaries.forget
        self._codec = codec

    def of(self, columns: Collection[str], terms: WriteTerms | None, *, retired: bool) -> Encoding:
        """For a put to these columns under these terms. ``retired``: a dictionary was retired since
        this process looked. Raises StorageUnavailable."""
        if retired:
            self._dictionaries.forget()
        dictionaries = (
            self._dictionaries.under(terms and terms.leader_epoch)
            if self._codec == DEFAULT_CODEC
            else {}
        )
        taken = frozenset(
            dictionaries[name].dictionary.dictionary_id for name in columns if name in dictionaries
        )
        return Encoding(lambda cells: encode_cells(cells, dictionaries, self._codec), taken)
