"""Schemas and cells that the tests of typed versions share."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from cellfeed.bridge.typed.body_schema import BodySchema, body_schema
from cellfeed.bridge.typed.stored_columns import Settings
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import StateEntry


def trip(*more: dict[str, Any]) -> BodySchema:
    """A record with a fare, and further fields."""
    fields = [{"name": "fare", "type": "long"}, *more]
    return body_schema(
        json.dumps({"type": "record", "name": "Trip", "namespace": "a", "fields": fields})
    )


NOTE = {"name": "note", "type": ["null", "string"], "default": None}

TIP = {"name": "tip", "type": "long", "default": 0}

V1, V2, V3 = VERSIONS = trip(), trip(NOTE), trip(NOTE, TIP)

PARK = Settings("park")


class StateInMemory:
    """A state table as the engine contract has it."""

    def __init__(self) -> None:
        self._entries: dict[str, StateEntry] = {}
        self._revision = 0

    def get(self, key: str) -> StateEntry | None:
        return self._entries.get(key)

    def list(self, prefix: str) -> builtins.list[StateEntry]:
        return [self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)]

    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        versions = {key: entry.version for key, entry in self._entries.items()}
        if any(versions.get(key) != version for key, version in (expect or {}).items()):
            return None
        self._revision += 1
        for key, value in write.items():
            self._entries.pop(key, None)
            if value is not None:
                self._entries[key] = StateEntry(key, value, self._revision)
        return self._revision

    def now_us(self) -> int:
        return 0


bodies = st.fixed_dictionaries(
    {"fare": st.integers(0, 5)},
    optional={"note": st.just("x"), "tip": st.just(1), "odd": st.just(1.5)},
)


def put(datastore: Datastore, *bodies: dict[str, Any]) -> list[tuple[int, int]]:
    """Shard and added_id of each."""
    results = datastore.put_cells(
        [(UUID(int=1), "BASE", number, body) for number, body in enumerate(bodies)]
    )
    return [
        (result.shard, result.added_id)
        for result in results
        if result.or_raise() and result.shard is not None and result.added_id is not None
    ]
