"""Retires a dictionary of an embedded datastore: its bodies are stored with another one, or none,
and then its content is gone.

    1. a new dictionary of its column is trained and put to use, where this one is in use and the
       bodies make one
    2. its turns go. A put looks at the turns in its own transaction, and files have one writer at a
       time: from this commit on no body is stored with it
    3. every body that names it is decoded, encoded anew and read back, some hundred in a
       transaction. One that was erased or trimmed meanwhile is left alone
    4. the whole file is searched for bodies that name it; then, after ``READERS_S``, the content
       goes

Readers never fail: until step 4 the content is there, and by then whoever has read a body before it
was rewritten has decoded it. Backups from before have the content; a chain of backups is read with
the dictionaries of all its pieces.

Killed anywhere, the same command goes on: what is rewritten no longer names the dictionary. Between
2 and 4 the content has no turn, as an unused one has none. Clusters are not built yet: a master's
put that was paused could come behind step 2 there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cellfeed.store.cells.body_codec import (
    CODEC_JSON_DICTIONARY,
    decode_body,
    encode_body,
    encode_with,
)
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.dictionary import Dictionary, name_of
from cellfeed.store.cells.known_dictionaries import know
from cellfeed.store.dictionaries.log_sample import sample_of_log
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import NotWorthIt, train
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import DataDamaged, NotFound, Trimmed
from cellfeed.store.failpoints import declare, failpoint

declare(
    "dictionary.retire.trained",
    "dictionary.retire.stopped",
    "dictionary.retire.rewritten",
    "dictionary.retire.searched",
    "dictionary.retire.removed",
)

READERS_S: Final = 10.0
"""How long the content outlives the last body that named it, in seconds: a reader decodes what it
has read in milliseconds."""

_SCAN_CELLS: Final = 500
"""Cells of one transaction: some milliseconds, which puts wait for."""

OnProgress = Callable[[int, int], None]
"""Is called with the cells that were looked at, and with all."""


@dataclass(frozen=True)
class Retired:
    """``replacement``: the name of the dictionary that the bodies have now; empty where they are
    stored without one."""

    name: str
    column_name: str
    rewritten: int
    replacement: str


def retire(
    engine: SqliteEngine,
    dictionary_id: int,
    on_progress: OnProgress = lambda *_: None,
    readers_s: float = READERS_S,
) -> Retired:
    """See the module. Raises NotFound, DataDamaged where a body cannot be read, Unavailable: then
    it is called again."""
    table = engine.dictionaries
    retiring = table.find(dictionary_id)
    if retiring is None:
        raise NotFound(
            f"there is no dictionary {name_of(dictionary_id)} that is whole; `cellfeed dictionary"
            " list` shows those that are there"
        )
    replacement = _replacement(engine, retiring)
    failpoint("dictionary.retire.trained")
    table.stop_using(dictionary_id)
    failpoint("dictionary.retire.stopped")
    rewritten = _rewrite(engine, retiring, replacement, on_progress)
    failpoint("dictionary.retire.rewritten")
    if left := engine.bodies_with(_prefix(retiring)):
        raise DataDamaged(
            f"{left} bodies name dictionary {retiring.name} still: it is kept. `cellfeed check`"
            " names the damage"
        )
    failpoint("dictionary.retire.searched")
    time.sleep(readers_s)
    table.remove(dictionary_id)
    failpoint("dictionary.retire.removed")
    return Retired(
        retiring.name, retiring.column_name, rewritten, replacement.name if replacement else ""
    )


def _replacement(engine: SqliteEngine, retiring: Dictionary) -> Dictionary | None:
    """The dictionary of the column that takes its place, in use from now on; None where there is
    none."""
    table, column = engine.dictionaries, retiring.column_name
    turn = table.current().get(column)
    if turn is not None and turn.dictionary_id != retiring.dictionary_id:
        return table.find(turn.dictionary_id)
    try:
        trained = train(column, sample_of_log(engine, column)).dictionary
    except NotWorthIt:
        return None
    publish(table, trained, turn.turn + 1 if turn else 0)
    now = table.current().get(column)  # another process may have been first
    return (
        table.find(now.dictionary_id)
        if now is not None and now.dictionary_id != retiring.dictionary_id
        else None
    )


def _prefix(dictionary: Dictionary) -> bytes:
    """What stored bodies begin with that name it."""
    return bytes([CODEC_JSON_DICTIONARY]) + dictionary.dictionary_id.to_bytes(4)


def _rewrite(
    engine: SqliteEngine,
    retiring: Dictionary,
    replacement: Dictionary | None,
    on_progress: OnProgress,
) -> int:
    """How many bodies were rewritten."""
    heads = engine.heads()
    total = sum(head.next_added_id - head.log_start for head in heads.values())
    done = rewritten = 0
    prefix = _prefix(retiring)
    know(retiring)
    for shard, head in heads.items():
        location = head.log_start
        while location < head.next_added_id:
            try:
                cells = engine.scan(shard, location, _SCAN_CELLS)
            except Trimmed:
                location = engine.heads([shard])[shard].log_start
                continue
            if not cells:
                break
            if named := [cell for cell in cells if cell.body.startswith(prefix)]:
                rewritten += engine.replace_bodies(
                    shard, [(cell, _encoded(cell, replacement)) for cell in named]
                )
            location = cells[-1].added_id + 1
            done += len(cells)
            on_progress(min(done, total), total)
    return rewritten


def _encoded(cell: StoredCell, replacement: Dictionary | None) -> bytes:
    """The body as it is stored from now on. Raises DataDamaged when it would not be the same."""
    body = decode_body(cell.body)
    encoded = (
        encode_body(body) if replacement is None else encode_with(know(replacement), [body])[0]
    )
    if decode_body(encoded) != body:
        raise DataDamaged(
            f"the body of cell {cell.added_id} does not come back as it was: nothing of it is"
            " rewritten"
        )
    return encoded
