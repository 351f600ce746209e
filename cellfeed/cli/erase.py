"""erase: a row goes everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from cellfeed.cli.cells import RowKeyArgument
from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    DatastoreOption,
    RunDirOption,
    UrlOption,
    client_of,
)
from cellfeed.cli.output import JsonOption, console, errors, print_json
from cellfeed.store.errors import InvalidRequest


def erase(
    row_key: RowKeyArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Erase a row: the bodies of all its cells are taken away for good, in every column and
    version; nothing brings them back.

    Their places in the log stay, and one more cell there reports the erasure to followers. Puts to
    the row are refused from then on. It is on record before it begins. It may be broken off, or
    wait for a cluster that is away or for a move of the row's shard. Then a worker ends it, and
    `cellfeed status` shows it until then. Run again it does the same at once, or nothing when all
    is done. A half copy of the shard whose mover has died is dropped first. The command names the
    remains that clusters keep of shards that have left them: `cellfeed shard clean` drops them.
    docs/operate/erase.md lists the bytes that disks, backups and exported topics still hold.
    """
    with client_of(run_dir, url, datastore) as client:
        if not yes:
            row = client.get_row(row_key)
            has = (
                f"has cells in {', '.join(sorted(row))}"
                if row
                else "has no cell that can be read; puts to it will be refused"
            )
            errors.print(
                f"row {row_key} of {client.name} (shard {client.shard_of(row_key)}) {has}",
                markup=False,
                highlight=False,
            )
            if not typer.confirm("Erase it for good?", err=True):
                raise InvalidRequest(
                    "nothing erased: it was not confirmed; --yes confirms beforehand"
                )
        erased = client.erase_row(row_key)
    if as_json:
        print_json(
            {
                "shard": erased.shard,
                "added_id": erased.added_id,
                "cells": erased.cells,
                "kept": erased.kept,
            }
        )
    else:
        console.print(
            f"{erased.cells} bodies erased; the log marks it at {erased.shard}/{erased.added_id}",
            highlight=False,
        )
        for line in erased.kept:
            console.print(f"still there: {line}", style="red", highlight=False, soft_wrap=True)
