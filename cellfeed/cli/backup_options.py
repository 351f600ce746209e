"""Options that several commands on backups share."""

from __future__ import annotations

from typing import Annotated

import typer

FolderArgument = Annotated[
    str,
    typer.Argument(metavar="DIR", help="The folder of backups, or s3://bucket/prefix."),
]


BackupOption = Annotated[
    str | None,
    typer.Option(
        "--backup",
        metavar="NAME",
        help="This backup, as `backup list` shows it; the newest when left out.",
    ),
]


LATEST = "latest"
