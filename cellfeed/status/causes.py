"""The causes for which a part stands still: a fixed list, so that metrics and alerts can name one.

Each has a page with the steps, ``docs/operate/alerts/<cause>.md``.
"""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """See the module. Words, as label values and names of pages are."""

    PROCESS_DOWN = "process-down"
    WORK_STOPPED = "work-stopped"
    STORAGE_AWAY = "storage-away"
    COORDINATION_AWAY = "coordination-away"
    MASTER_AWAY = "master-away"
    NODE_AWAY = "node-away"
    NODE_FENCED = "node-fenced"
    DISK_FULL = "disk-full"
    CERTIFICATE_EXPIRED = "certificate-expired"
    PAUSED = "paused"
    FUNCTIONS_FAIL = "functions-fail"
    CELLS_PARKED = "cells-parked"
    OFFSETS_LOST = "offsets-lost"
    SHARDS_STAND = "shards-stand"
    KAFKA_AWAY = "kafka-away"
    INDEX_BUILD_STANDS = "index-build-stands"
    CONSUMERS_STAND = "consumers-stand"
    CELLS_LEFT_OUT = "cells-left-out"
    ERASURE_OPEN = "erasure-open"
    BACKUP_LATE = "backup-late"
    DAMAGE = "damage"
