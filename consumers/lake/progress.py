"""When a loader commits, and its progress so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

COMMIT_BYTES: Final = 48 << 20
"""Memory of all waiting rows, bytes, after which they are committed: the limit of a loader's
memory, with the client's queue and the libraries below 500 MiB."""

COMMIT_ROWS: Final = 250_000
"""Waiting rows after which they are committed: a file of some ten MB."""

COMMIT_AGE_S: Final = 5.0
"""How long a row waits for its commit at most, seconds: half of the declared freshness."""


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """When waiting rows are committed: at so many rows or bytes, or when the oldest has waited so
    long."""

    rows: int = COMMIT_ROWS
    bytes: int = COMMIT_BYTES
    age_s: float = COMMIT_AGE_S


DEFAULT_POLICY: Final = CommitPolicy()


@dataclass(slots=True)
class TableProgress:
    """The commits of a loader to one typed table. ``parked``: cells that wait there for a mended
    schema."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0
    parked: int = 0


@dataclass(slots=True)
class LakeProgress:
    """The progress of a loader so far. ``stopped`` says per partition why it is not read any
    further, ``trouble`` why nothing is committed just now. ``tables``: typed tables by name;
    ``table_troubles``: by column, why its tables do not follow."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0
    overtaken: int = 0
    waiting_rows: int = 0
    next_offsets: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    stopped: dict[int, str] = field(default_factory=dict)
    trouble: str = ""
    tables: dict[str, TableProgress] = field(default_factory=dict)
    table_troubles: dict[str, str] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Records between the table and the ends of the partitions, as far as the client has heard
        of them. In a Kafka cluster marks of transactions count as well."""
        return sum(
            max(0, end - self.next_offsets.get(shard, 0)) for shard, end in self.ends.items()
        )


OnProgress = Callable[[LakeProgress], None]
