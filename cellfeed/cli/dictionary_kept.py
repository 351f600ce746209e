"""dictionary list|show|export|recover: the dictionaries of every storage node. They look at each
node by itself, so they work where a lost dictionary keeps the datastore from being opened."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from cellfeed.cli.dictionary import NameArgument, app
from cellfeed.cli.dictionary_places import (
    by_name,
    fields_of,
    joined,
    not_whole,
    opened_places,
    whole,
)
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption
from cellfeed.cli.output import JsonOption, console, print_json, print_result
from cellfeed.store.cells.dictionary import from_line, to_line
from cellfeed.store.dictionaries.recovery import recover as recover_lost
from cellfeed.store.errors import DictionaryLost, InvalidRequest, NotFound

_TEXT: Final = frozenset(string.printable) - frozenset("\t\n\r\x0b\x0c")

_TEXT_MIN: Final = 4
"""Printable characters in a row that are shown as text; fewer are zstd's tables."""


@app.command("list")
def list_all(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show every dictionary, and on which storage nodes it is whole. Exits with 3 when one that
    bodies need is not."""
    lost = False
    table = Table(
        "name", "column", "use", "bytes", "trained on", "trained at", "whole on", "not on", box=None
    )
    with opened_places(config, run_dir) as places:
        for name, kept in sorted(
            by_name(places).items(), key=lambda item: (item[1][0].kept.column_name, item[0])
        ):
            fields = fields_of(name, kept)
            lost |= bool(fields["not_whole_on"])
            if as_json:
                print_json(fields)
            samples = f"{fields['samples']} bodies"
            table.add_row(
                name,
                fields["column"],
                fields["use"],
                str(fields["bytes"]),
                samples,
                fields["trained_at"],
                joined(fields["whole_on"]),
                not_whole(fields),
            )
    if not as_json:
        console.print(table if table.row_count else "no column has a dictionary")
    if lost:
        raise typer.Exit(DictionaryLost.exit_code)


@app.command("show")
def show(
    name: NameArgument,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show a dictionary and the text in it: nothing else of the cells that it was
    trained on is in it."""
    with opened_places(config, run_dir) as places:
        kept = by_name(places).get(name)
        if kept is None:
            raise NotFound(
                f"there is no dictionary {name!r}; `cellfeed dictionary list` shows those that are"
                " there"
            )
        fields = fields_of(name, kept)
        dictionary = whole(kept)
    text = [] if dictionary is None else list(_texts(dictionary.content))
    if as_json:
        print_json({**fields, "text": text})
        return
    console.print(
        f"{name}, column {fields['column']}, {fields['use']}, {fields['bytes']} bytes, trained on"
        f" {fields['samples']} bodies at {fields['trained_at']}"
    )
    console.print(
        f"whole on: {joined(fields['whole_on'])}"
        + (f"; {not_whole(fields)}" if fields["not_whole_on"] else "")
    )
    for each in text:
        console.print(each, markup=False, highlight=False)


@app.command("export")
def export(
    file: Annotated[
        Path, typer.Argument(help="The file to write; one that is there is left alone.")
    ],
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Write all dictionaries to a file, for `recover --file`. Raises an error, and writes nothing,
    when one that bodies need is whole nowhere."""
    with opened_places(config, run_dir) as places:
        found = {
            name: (whole(kept), kept[0].kept) for name, kept in sorted(by_name(places).items())
        }
    lost = [
        f"{name} of column {kept.column_name!r}"
        for name, (dictionary, kept) in found.items()
        if dictionary is None and kept.turns
    ]
    if lost:
        raise DictionaryLost(f"dictionary {', '.join(lost)} is whole nowhere: nothing exported")
    lines = [to_line(dictionary) for dictionary, _ in found.values() if dictionary is not None]
    try:
        with file.open("xb") as target:
            target.writelines(lines)
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror}") from None
    print_result(
        as_json,
        {"file": str(file), "dictionaries": len(lines)},
        f"{file}: {len(lines)} dictionaries",
    )


@app.command("recover")
def recover(
    from_cluster: Annotated[
        str | None,
        typer.Option(
            "--from", help="Take them from this cluster; from any that has them when left out."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="A file that `cellfeed dictionary export` wrote, looked at first."
        ),
    ] = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Bring back every dictionary that is missing or damaged on a storage node, from another node,
    another cluster or an export.

    Only the very same content is taken. Running it again changes nothing; nodes that do not answer
    are named, and wait for the next run.
    """
    try:
        exported = [from_line(line) for line in file.read_bytes().splitlines()] if file else []
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror}") from None
    with opened_places(config, run_dir) as places:
        done = recover_lost(places, exported, from_cluster)
    for each in done:
        print_result(
            as_json,
            asdict(each),
            f"{each.place}: {each.name} of column {each.column_name} is back, from {each.source}",
        )
    if not done:
        print_result(as_json, {"recovered": 0}, "nothing is lost")


def _texts(content: bytes) -> Iterator[str]:
    """The readable runs of it."""
    run = ""
    for character in content.decode("utf-8", "replace") + "\0":
        if character in _TEXT or (character > "\x7f" and character != "\ufffd"):
            run += character
            continue
        if len(run) >= _TEXT_MIN:
            yield run
        run = ""
