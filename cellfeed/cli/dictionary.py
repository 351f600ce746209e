"""dictionary train|list|show|export|recover|retire: dictionaries that encode bodies.

Only ``train`` and ``retire`` open the datastore. The others look at every storage node by itself,
so they work where a lost dictionary keeps the datastore from being opened.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.table import Table

from cellfeed.assembly.datastore import dictionary_places, rewritable_engine
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, config_of, opened
from cellfeed.cli.output import JsonOption, console, errors, print_json, progress_bar
from cellfeed.run_dir import RunDir
from cellfeed.store.cells.dictionary import ID_BYTES, Dictionary, from_line, to_line
from cellfeed.store.dictionaries.log_sample import sample_of_log
from cellfeed.store.dictionaries.recovery import Place
from cellfeed.store.dictionaries.recovery import recover as recover_lost
from cellfeed.store.dictionaries.retiring import retire as retire_dictionary
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import NotWorthIt, train
from cellfeed.store.engines.contract.dictionaries import Condition, KeptDictionary
from cellfeed.store.errors import DictionaryLost, InvalidRequest, NotFound

app = typer.Typer(
    no_args_is_help=True,
    help=("Dictionaries: the common parts of a column's bodies, stored once instead of with each."),
)
NameArgument = Annotated[
    str, typer.Argument(help="A dictionary's name: eight hexadecimal digits, as `list` shows them.")
]

_TEXT: Final = frozenset(string.printable) - frozenset("\t\n\r\x0b\x0c")
_TEXT_MIN: Final = 4
"""Printable characters in a row that are shown as text; fewer are zstd's tables."""


@app.command("train")
def train_column(
    column: Annotated[str, typer.Argument(help="The column whose bodies get the dictionary.")],
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help=(
                "Although the column has one; new cells take the new one, and the old one is kept."
            ),
        ),
    ] = False,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Train a dictionary from the first cells of a column, and put it to use for new cells. Values
    that few row keys share are not in it.

    It is kept for as long as a body needs it: `cellfeed dictionary retire` takes it away.
    """
    with opened(run_dir, config) as instance:
        engine = instance.datastore.engine
        engine.dictionaries.complete()
        before = engine.dictionaries.current().get(column)
        if before is not None and not again:
            raise InvalidRequest(
                f"column {column!r} has a dictionary in use already; train another one with --again"
            )
        try:
            trained = train(column, sample_of_log(engine, column))
        except NotWorthIt as reason:
            raise InvalidRequest(f"column {column!r}: nothing trained: {reason}") from None
        if not publish(engine.dictionaries, trained.dictionary, before.turn + 1 if before else 0):
            raise InvalidRequest(
                f"column {column!r} has got another dictionary meanwhile, which is in use; this one"
                " lies unused"
            )
    fields = {
        "name": trained.dictionary.name,
        "column": column,
        "bytes_before": trained.bytes_before,
        "bytes_after": trained.bytes_after,
    }
    text = (
        f"{trained.dictionary.name} is in use for column {column}: a body of"
        f" {trained.bytes_before:.0f} bytes becomes {trained.bytes_after:.0f}"
    )
    _report(as_json, fields, text)


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
    with _places(config, run_dir) as places:
        for name, kept in sorted(
            _by_name(places).items(), key=lambda item: (item[1][0].kept.column_name, item[0])
        ):
            fields = _fields(name, kept)
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
                _joined(fields["whole_on"]),
                _bad(fields),
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
    with _places(config, run_dir) as places:
        kept = _by_name(places).get(name)
        if kept is None:
            raise NotFound(
                f"there is no dictionary {name!r}; `cellfeed dictionary list` shows those that are"
                " there"
            )
        fields = _fields(name, kept)
        dictionary = _whole(kept)
    text = [] if dictionary is None else list(_texts(dictionary.content))
    if as_json:
        print_json({**fields, "text": text})
        return
    console.print(
        f"{name}, column {fields['column']}, {fields['use']}, {fields['bytes']} bytes, trained on"
        f" {fields['samples']} bodies at {fields['trained_at']}"
    )
    console.print(
        f"whole on: {_joined(fields['whole_on'])}"
        + (f"; {_bad(fields)}" if fields["not_whole_on"] else "")
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
    with _places(config, run_dir) as places:
        found = {
            name: (_whole(kept), kept[0].kept) for name, kept in sorted(_by_name(places).items())
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
    _report(
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
    with _places(config, run_dir) as places:
        done = recover_lost(places, exported, from_cluster)
    for each in done:
        _report(
            as_json,
            asdict(each),
            f"{each.place}: {each.name} of column {each.column_name} is back, from {each.source}",
        )
    if not done:
        _report(as_json, {"recovered": 0}, "nothing is lost")


@app.command("retire")
def retire(
    name: NameArgument,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Take away a dictionary with content that must not be stored: its bodies are stored with
    another one, and its content goes.

    Everything else is at work meanwhile. No new body takes it from the start. When the column uses
    it, a new one is trained first. On clusters the bodies are rewritten on each master and
    replicated. Ten seconds later every node is searched, with the copies that clusters keep of
    shards that have left them; then the content is removed. Refused (exit code 3) while a body
    names it. After a promotion, or beside a move, it may end before that. Killed or ended, run it
    again: it continues. Backups from before hold the content until `cellfeed backup prune` removes
    them; after a restore of one, retire it again. `cellfeed scrub` takes its bytes out of the
    files.
    """
    if not (len(name) == 2 * ID_BYTES and set(name) <= set("0123456789abcdef")):
        raise InvalidRequest(
            f"{ascii(name)[:40]} is no dictionary's name: eight hexadecimal digits, as `cellfeed"
            " dictionary list` shows them"
        )
    with opened(run_dir, config) as instance:
        engine = rewritable_engine(instance.datastore)
        with progress_bar() as bar:
            task = bar.add_task("rewriting bodies (cells)", total=None)
            done = retire_dictionary(
                engine,
                int(name, 16),
                lambda looked, total: bar.update(task, completed=looked, total=total),
            )
    stored = (
        f"are stored with {done.replacement}"
        if done.replacement
        else "are stored without a dictionary"
    )
    _report(
        as_json,
        asdict(done),
        f"{name} of column {done.column_name} is gone; {done.rewritten} bodies {stored}",
    )


@contextmanager
def _places(config: Path | None, run_dir: Path) -> Iterator[list[Place]]:
    with dictionary_places(config_of(run_dir, config), RunDir(run_dir).path) as (
        places,
        silent,
    ):
        for node, why in silent.items():
            errors.print(f"node {node} was not looked at: {why}", highlight=False)
        yield places


class _Found(NamedTuple):
    """A dictionary in one place. ``in_use``: puts take it there."""

    place: Place
    kept: KeptDictionary
    in_use: bool


Kept = list[_Found]


def _by_name(places: list[Place]) -> dict[str, Kept]:
    """Of each dictionary those places first that know most of it."""
    found: dict[str, Kept] = {}
    for place in places:
        all_kept = place.table.kept()
        latest = {(each.column_name, turn): each.name for each in all_kept for turn in each.turns}
        current = {
            column: latest[column, max(turn for name, turn in latest if name == column)]
            for column, _ in latest
        }
        for each in all_kept:
            found.setdefault(each.name, []).append(
                _Found(place, each, current.get(each.column_name) == each.name)
            )
    return {
        name: sorted(
            kept, key=lambda one: (one.kept.condition is not Condition.WHOLE, -len(one.kept.turns))
        )
        for name, kept in found.items()
    }


def _fields(name: str, kept: Kept) -> dict[str, Any]:
    first = kept[0].kept
    use = (
        "in use"
        if any(one.in_use for one in kept)
        else "earlier cells"
        if any(one.kept.turns for one in kept)
        else "unused"
    )
    return {
        "name": name,
        "column": first.column_name,
        "use": use,
        "bytes": first.content_bytes,
        "samples": first.samples,
        "trained_at": (
            datetime.fromtimestamp(first.trained_at_us / 1e6, UTC).isoformat(timespec="seconds")
        ),
        "sha256": first.sha256.hex(),
        "whole_on": [str(place) for place, each, _ in kept if each.condition is Condition.WHOLE],
        "not_whole_on": {
            str(place): str(each.condition)
            for place, each, _ in kept
            if each.condition is not Condition.WHOLE and each.turns
        },
    }


def _whole(kept: Kept) -> Dictionary | None:
    for place, each, _ in kept:
        if each.condition is Condition.WHOLE:
            return place.table.find(each.dictionary_id)
    return None


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


def _joined(names: list[str]) -> str:
    return ", ".join(names) or "no node"


def _bad(fields: dict[str, Any]) -> str:
    return ", ".join(f"{node}: {condition}" for node, condition in fields["not_whole_on"].items())


def _report(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(value)
    else:
        console.print(text, highlight=False)
