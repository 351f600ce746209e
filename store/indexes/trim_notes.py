"""Which shards have notes of trims whose entries may still be in indexes
(:mod:`cellfeed.store.indexes.trimmed` writes them, before cells go)."""

from __future__ import annotations

from typing import Final

from cellfeed.store.engines.contract.state_table import StateTable

NOTES: Final = "trims/"
"""Begins the keys of notes; the shard's number follows."""


def noted_shards(state: StateTable) -> dict[int, frozenset[tuple[str, int]]]:
    """Of each shard that has notes of trims their keys and versions."""
    found: dict[int, set[tuple[str, int]]] = {}
    for entry in state.list(NOTES):
        shard = int(entry.key.removeprefix(NOTES).partition("/")[0])
        found.setdefault(shard, set()).add((entry.key, entry.version))
    return {shard: frozenset(notes) for shard, notes in found.items()}
