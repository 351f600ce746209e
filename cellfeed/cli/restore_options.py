"""The options of `restore`, and which of them exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from cellfeed.cli.restore_readers import ReadersAhead
from cellfeed.store.errors import InvalidRequest

NO_REASON: Final = "not given"

IntoOption = Annotated[
    Path,
    typer.Option(
        "--into",
        metavar="RUN_DIR",
        help="The run directory of the instance that gets it; made when it is not there.",
    ),
]
TargetConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help=(
            "The YAML configuration of that instance; the run directory's own, or the built-in"
            " one, when left out."
        ),
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help=(
            "As it was at this moment, with its zone, such as 2026-03-01T12:00:00Z: each log"
            " ends before its first later cell."
        ),
    ),
]
AheadOption = Annotated[
    ReadersAhead,
    typer.Option(
        "--readers-ahead",
        help=(
            "raise-epoch: although readers may have come further than the backup, let the ids"
            " continue above all of them."
        ),
    ),
]
AboveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--above",
        metavar="ID",
        help=(
            "Somebody whom nobody knows has read ids below this one, of every shard or"
            " SHARD:ID; may be given several times."
        ),
    ),
]
ReasonOption = Annotated[
    str, typer.Option("--reason", help="Why; the log shows it where ids are left out.")
]
RowKeyOption = Annotated[
    str | None,
    typer.Option(
        "--row-key",
        metavar="UUID",
        help="Only the cells of this row that the store lacks, into a store that has cells.",
    ),
]
ShardOption = Annotated[
    int | None,
    typer.Option(
        "--shard",
        metavar="N",
        help="Only the cells of this shard that the store lacks, into a store that has cells.",
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="With --row-key or --shard: count the cells that would be put; put nothing.",
    ),
]
FromHistoryOption = Annotated[
    str | None,
    typer.Option(
        "--from-history",
        metavar="ID",
        help=(
            "With --row-key or --shard: the backup is of this history, which the store does not"
            " know, and its cells belong into the store."
        ),
    ),
]


def refuse_together(
    row_key: str | None,
    shard: int | None,
    whole_only: Mapping[str, object],
    part_only: Mapping[str, object],
) -> None:
    """Raises InvalidRequest for options that do not go together."""
    if row_key is not None and shard is not None:
        raise InvalidRequest(
            "--row-key and --shard exclude each other: a row is in one shard alone"
        )
    is_part = row_key is not None or shard is not None
    if wrong := [name for name, given in (whole_only if is_part else part_only).items() if given]:
        raise InvalidRequest(
            f"{wrong[0]} goes {'without' if is_part else 'with'} a --row-key or --shard"
        )
