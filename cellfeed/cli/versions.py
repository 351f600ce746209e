"""The version, and the formats on disk that it reads and writes: an operator compares them before
an older program opens a newer store."""

from __future__ import annotations

from collections.abc import Iterator

from cellfeed import __version__
from cellfeed.consumers.warehouse.layout import FORMAT
from cellfeed.store.backups.sealed import ENCRYPTED, FORMATS, PLAIN
from cellfeed.store.engines.mysql.schema_steps import SCHEMA_VERSION as CLUSTER_VERSION
from cellfeed.store.engines.sqlite.tables import SCHEMA_VERSION as EMBEDDED_VERSION


def version_lines() -> Iterator[str]:
    """The version first; then each format. Opening an embedded store migrates it to the newest
    version; a cluster is migrated by ``cellfeed cluster migrate``."""
    yield f"cellfeed {__version__}"
    yield (
        f"embedded store: reads schema versions 1 to {EMBEDDED_VERSION}, writes {EMBEDDED_VERSION}"
    )
    yield (
        f"cluster: migrates schema versions 1 to {CLUSTER_VERSION - 1}, reads and writes"
        f" {CLUSTER_VERSION}"
    )
    yield (
        f"backup: reads formats {FORMATS[0]} to {FORMATS[-1]}, writes {PLAIN}, and {ENCRYPTED}"
        " where it is encrypted"
    )
    yield f"warehouse table: reads and writes format {FORMAT}"
