"""A place in a cluster's binlog: the last GTID of each replication domain, as MariaDB writes it
(`0-1-120,7-1-3`: domain, server, number)."""

from __future__ import annotations

from collections.abc import Mapping

Position = Mapping[str, str]
"""By domain the last GTID that was passed."""


def position_of(text: str) -> dict[str, str]:
    """The position that a server reports; nothing of an empty one."""
    return {each.partition("-")[0]: each for each in text.replace(" ", "").split(",") if each}


def text_of(position: Position) -> str:
    return ",".join(position[domain] for domain in sorted(position, key=int))


def number_of(gtid: str) -> int:
    return int(gtid.rpartition("-")[2])


def has_passed(position: Position, target: Position) -> bool:
    """Whether all transactions up to ``target`` are in ``position``."""
    return all(
        domain in position and number_of(position[domain]) >= number_of(gtid)
        for domain, gtid in target.items()
    )
