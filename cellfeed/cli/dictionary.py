"""dictionary train|retire: dictionaries that encode bodies. Verbs that look at
every storage node by itself are in dictionary_kept.py."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cellfeed.assembly.datastore import rewritable_engine
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, opened
from cellfeed.cli.output import JsonOption, print_result, progress_bar
from cellfeed.store.cells.dictionary import ID_BYTES
from cellfeed.store.dictionaries.log_sample import sample_of_log
from cellfeed.store.dictionaries.retiring import retire as retire_dictionary
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import NotWorthIt, train
from cellfeed.store.errors import InvalidRequest

app = typer.Typer(
    no_args_is_help=True,
    help=("Dictionaries: the common parts of a column's bodies, stored once instead of with each."),
)
NameArgument = Annotated[
    str, typer.Argument(help="A dictionary's name: eight hexadecimal digits, as `list` shows them.")
]


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
    print_result(as_json, fields, text)


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
    print_result(
        as_json,
        asdict(done),
        f"{name} of column {done.column_name} is gone; {done.rewritten} bodies {stored}",
    )
