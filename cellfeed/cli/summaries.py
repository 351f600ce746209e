"""The first sentence of each verb's help: ``cellfeed --help`` prints them and imports no verb."""

from __future__ import annotations

from typing import Final

SUMMARIES: Final = {
    "up": (
        "Start an instance: HTTP workers, Kafka gateway, and everything else the"
        " configuration names."
    ),
    "down": "End an instance: every process drains and stops.",
    "start": "Bring back one process of an instance, on the ports that it had.",
    "status": "Show an instance: processes, logs, consumer groups and triggers with their lag.",
    "doctor": "Inspect an installation, and name its faults with their remedies.",
    "top": "Watch an instance: parts that stand still, with remedies, and the lag of groups.",
    "load": "Load a file's records as cells.",
    "put": "Write one cell.",
    "get": "Read a cell, the latest cell of a column, or the latest of every column of a row.",
    "scan": "Read a shard's log from a location on.",
    "tail": "Follow the logs: new cells of all shards as they come.",
    "wait": (
        "Wait until a trigger, an index, a consumer group, an export or a lake has passed a put."
    ),
    "verify": (
        "Print a digest per shard; with --gateway or --parquet compare it there, up to where "
        "all have come."
    ),
    "check": (
        "Look for damage: in the files of an embedded store, or on every node of the clusters, "
        "beside live writes."
    ),
    "trim": (
        "Let the logs of shards begin later: earlier cells are gone, for readers of the log "
        "and for reads by key, and cannot be brought back."
    ),
    "restore": (
        "Bring a backup back into empty storage: embedded, or the clusters of a configuration."
    ),
    "erase": (
        "Erase a row: the bodies of all its cells are taken away for good, in every column and "
        "version; nothing brings them back."
    ),
    "scrub": "Write the files of a datastore again, without the bytes of erased and trimmed cells.",
    "rebalance": (
        "Move shards until every cluster has as many, with as few moves as that takes; or until"
        " one is drained."
    ),
    "demo": (
        "Load New York taxi trips, bill them, follow them with a Kafka consumer into Parquet, "
        "and prove that nothing was lost."
    ),
    "run": (
        "Run one process of an instance in the foreground (as `up` does; for other supervisors)."
    ),
    "triggers": (
        "Triggers: run workers, see how far each is and why, pause, resume, reset, and the changes"
        " made by hand."
    ),
    "export": "Exports: the log in a Kafka cluster, exactly once.",
    "parked": (
        "Cells that a trigger could not run: list, show, retry, skip, export; resume a stopped "
        "trigger."
    ),
    "offsets": "Offsets of a trigger or consumer group: show them; set where it resumes.",
    "cluster": "Make and look after clusters of MariaDB servers.",
    "config": (
        "The configuration file: check it, show the values in force, print its JSON Schema."
    ),
    "shard": "See where shards are, and move them between clusters while everything runs.",
    "dictionary": (
        "Dictionaries: the common parts of a column's bodies, stored once instead of with each."
    ),
    "backup": (
        "Back a datastore up into files, and look after them; `cellfeed restore` brings one back."
    ),
    "users": "Users of gateways and HTTP: add, list, remove, give another password.",
    "tokens": "Bearer tokens for HTTP: create one for a principal, list them, revoke one.",
    "acls": "The rights of users, tokens and certificates: allow, deny, remove, list.",
    "warehouse": "The warehouse table: SQL over it, and how far it has come.",
    "lake": (
        "Lake tables (Iceberg, Delta): how far they are, SQL over them, digests beside the store."
    ),
    "index": "Secondary indexes: find rows by the fields of their cells.",
    "schemas": (
        "Avro schemas of columns: list their versions, check a new one, see which cells fit none."
    ),
}
