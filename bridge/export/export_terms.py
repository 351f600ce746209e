"""The terms settled when an export began, once for all its processes: one entry of the state table,
made by compare-and-set before the first cell is exported.

Key: ``export/<name>``. How many units there are must never differ between two processes, or two
exporters would write one partition. Where each shard begins must not slide while shards are begun
one after the other. The topic's id reveals a topic that was deleted and made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.limits import SHARDS_OF_A_UNIT, UNITS
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import refuse_other_history

_PREFIX: Final = "export/"

declare("export.before_settled", "export.after_settled")


class ExportTerms(msgspec.Struct, frozen=True):
    """See the module. ``starts`` by shard; ``generation`` rises each time that the export was begun
    over in a new topic. ``history_id``, ``origin_id``: of the datastore that began it; restores
    keep the origin. ``cluster_id``: of the Kafka cluster. Empty in terms of earlier versions, until
    the next start."""

    datastore: str
    topic: str
    topic_id: str
    units: int
    records: str
    starts: list[int]
    at_us: int
    generation: int = 1
    history_id: str = ""
    origin_id: str = ""
    cluster_id: str = ""

    def shards_of(self, unit: int) -> list[int]:
        """The shards of one unit: neighbours are of different ones, so cells put in order of shards
        are spread."""
        return list(range(unit, len(self.starts), self.units))


_decode: Final = msgspec.msgpack.Decoder(ExportTerms).decode


def read_terms(datastore: Datastore, name: str) -> ExportTerms | None:
    """None when the export has never begun."""
    entry = datastore.state.get(terms_key(name))
    return _decode(entry.value) if entry else None


def terms_of_all(datastore: Datastore) -> Mapping[str, ExportTerms]:
    """By name, of every export that has begun."""
    return {
        unquote(name): _decode(entry.value)
        for entry in datastore.state.list(_PREFIX)
        if "/" not in (name := entry.key.removeprefix(_PREFIX))
    }


def agree_terms(
    datastore: Datastore, export: Export, topic_id: str, cluster_id: str
) -> ExportTerms:
    """The settled terms; settles them when there are none. Raises ProtectData when they differ from
    the configuration, or were settled for another cluster: two clusters would each get a part of
    the shards."""
    while True:
        entry = datastore.state.get(terms_key(export.name))
        if entry is not None:
            found = _decode(entry.value)
            _check(found, datastore, export, cluster_id)
            own = msgspec.structs.replace(found, cluster_id=found.cluster_id or cluster_id)
            if not found.origin_id:
                own = msgspec.structs.replace(
                    own, history_id=datastore.history_id, origin_id=datastore.origin_id
                )
            if own == found:
                return found
            datastore.state.commit(
                _entry(export.name, own), expect={terms_key(export.name): entry.version}
            )
            continue
        heads = datastore.heads()
        starts = [
            heads[shard].log_start if export.start == "earliest" else heads[shard].watermark
            for shard in range(datastore.shards)
        ]
        units = min(
            export.units or min(UNITS, max(1, datastore.shards // SHARDS_OF_A_UNIT)),
            datastore.shards,
        )
        new = ExportTerms(
            datastore.name,
            export.topic_of(datastore.name),
            topic_id,
            units,
            export.fingerprint(),
            starts,
            datastore.state.now_us(),
            history_id=datastore.history_id,
            origin_id=datastore.origin_id,
            cluster_id=cluster_id,
        )
        failpoint("export.before_settled")
        datastore.state.commit(_entry(export.name, new), expect={terms_key(export.name): None})
        failpoint("export.after_settled")


def start_over(
    datastore: Datastore, export: Export, before: ExportTerms, topic_id: str
) -> ExportTerms:
    """Settles that the export begins again in a new topic, unless another process has. Raises
    ProtectData as :func:`settle`."""
    entry = datastore.state.get(terms_key(export.name))
    if entry is not None and _decode(entry.value) == before:
        new = msgspec.structs.replace(
            before,
            topic_id=topic_id,
            at_us=datastore.state.now_us(),
            generation=before.generation + 1,
            history_id=datastore.history_id,
            origin_id=datastore.origin_id,
        )
        datastore.state.commit(
            _entry(export.name, new), expect={terms_key(export.name): entry.version}
        )
    return agree_terms(datastore, export, topic_id, before.cluster_id)


def _check(found: ExportTerms, datastore: Datastore, export: Export, cluster_id: str) -> None:
    if found.cluster_id and cluster_id and found.cluster_id != cluster_id:
        raise ProtectData(
            f"export {export.name} was begun in Kafka cluster {found.cluster_id}; the one at"
            f" {export.bootstrap} is {cluster_id}. Two clusters would share the shards. Give this"
            " export a new name; or, where this cluster replaces that one: cellfeed export forget"
            f" {export.name} --reason …"
        )
    refuse_other_history(
        f"export {export.name}",
        found.origin_id,
        "the datastore",
        datastore.origin_id,
        "Both ids are the first of their lineages. Bring the datastore back that began the export,"
        f" or give this one a new name and topic (topic {found.topic} stays as it is)",
    )
    now = {
        "the datastore": (found.datastore, datastore.name),
        "the number of shards": (len(found.starts), datastore.shards),
        "the topic": (found.topic, export.topic_of(datastore.name)),
        "the form of its records (format, column, filter, fields, created_at, body,"
        " too_large, record_bytes_max)": (
            found.records,
            export.fingerprint(),
        ),
    }
    if export.units is not None:
        now["the number of units"] = (found.units, min(export.units, datastore.shards))
    for what, (before, after) in now.items():
        if before != after:
            raise ProtectData(
                f"export {export.name} was begun with another {what.removeprefix('the ')}"
                f" ({before}, now {after}): give this one a new name and topic"
            )


def _entry(name: str, value: ExportTerms) -> Mapping[str, bytes | None]:
    return {terms_key(name): msgspec.msgpack.encode(value)}


def terms_key(name: str) -> str:
    """Of the entry in the state table."""
    return f"{_PREFIX}{quote(name, safe='')}"
