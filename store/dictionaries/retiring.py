"""Retires a dictionary: its bodies are stored with another one, or none, and then its content is
gone. Everything else is at work meanwhile.

    1. a new dictionary of its column is trained and put to use, where this one is in use and the
       bodies make one
    2. its turns go, on every cluster. A put reads the turns behind its locks, so a put that gets
       its locks after this stores no body with it. Each shard waits for the puts that have the
       locks (:meth:`~cellfeed.store.engines.contract.engine.RewritableEngine.settle_puts`)
    3. every body that names it is decoded, encoded again and compared, some hundred in a
       transaction that is fenced and replicated as a put is. One that was erased or trimmed
       meanwhile is left alone
    4. after ``READERS_S`` every table is searched for bodies that name it: on every node that
       answers, and also in the copies that clusters keep of shards that have left them
    5. the content goes, on every cluster

**Readers never fail**: until step 5 the content is there. A reader that read a body before it was
rewritten has decoded it long before step 5. A minion that is behind has the content for as long as
a body of it names it, for both come by one log. Backups from before have the content; a chain of
backups is read with the dictionaries of all its pieces.

**A promotion** between steps 2 and 5 may take step 2 back, where replication is asynchronous. So
step 5 is refused under another leader epoch than that of step 2, and the command is run again. The
same holds where another process has put the dictionary to use again.

**A move** of a shard: while it is copied nothing is rewritten there, and the command waits, or ends
and is run again. A shard that has moved is rewritten where it is.

Killed anywhere, the same command continues: rewritten bodies no longer name the dictionary. Between
2 and 5 the content has no turn, as an unused one has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cellfeed.store.cells.body_codec import CODEC_JSON_DICTIONARY, decode_body
from cellfeed.store.cells.body_encoding import encode_body, encode_with
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.dictionary import Dictionary, name_of
from cellfeed.store.cells.known_dictionaries import know
from cellfeed.store.dictionaries.log_sample import sample_of_log
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import NotWorthIt, train
from cellfeed.store.engines.contract.rewritable import RewritableEngine
from cellfeed.store.errors import DataDamaged, NotFound, ProtectData
from cellfeed.store.failpoints import declare, failpoint

declare(
    "dictionary.retire.trained",
    "dictionary.retire.stopped",
    "dictionary.retire.between_batches",
    "dictionary.retire.rewritten",
    "dictionary.retire.searched",
    "dictionary.retire.removed",
)

READERS_S: Final = 10.0
"""How long the content outlives the last body that named it, in seconds: a reader decodes its
bodies within milliseconds."""

_LOOK_CELLS: Final = 2_000
"""Cells that are looked at in one read."""

_REPLACED_CELLS: Final = 250
"""Bodies of one transaction, of at most 32 KiB each: some milliseconds, which puts wait for."""

_NAMED_MAX: Final = 5

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
    engine: RewritableEngine,
    dictionary_id: int,
    on_progress: OnProgress = lambda *_: None,
    readers_s: float = READERS_S,
) -> Retired:
    """See the module. Raises NotFound, DataDamaged where a body cannot be read, ProtectData
    where one is left that names it, Unavailable: then it is called again."""
    table = engine.dictionaries
    retiring = table.find(dictionary_id)
    if retiring is None:
        raise NotFound(
            f"there is no dictionary {name_of(dictionary_id)} that is whole; `cellfeed dictionary"
            " list` shows those that are there"
        )
    replacement = _replacement(engine, retiring)
    failpoint("dictionary.retire.trained")
    stopped = table.stop_using(dictionary_id)
    failpoint("dictionary.retire.stopped")
    rewritten = _rewrite(engine, retiring, replacement, on_progress)
    failpoint("dictionary.retire.rewritten")
    time.sleep(readers_s)
    _refuse_left(engine, retiring)
    failpoint("dictionary.retire.searched")
    table.take_away(dictionary_id, stopped)
    failpoint("dictionary.retire.removed")
    return Retired(
        retiring.name, retiring.column_name, rewritten, replacement.name if replacement else ""
    )


def _replacement(engine: RewritableEngine, retiring: Dictionary) -> Dictionary | None:
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
    """The beginning of stored bodies that name it."""
    return bytes([CODEC_JSON_DICTIONARY]) + dictionary.dictionary_id.to_bytes(4)


def _rewrite(
    engine: RewritableEngine,
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
        end, location = engine.settle_puts(shard), head.log_start
        while location < end:
            found = engine.bodies_named(shard, prefix, location, _LOOK_CELLS)
            for start in range(0, len(found.cells), _REPLACED_CELLS):
                batch = found.cells[start : start + _REPLACED_CELLS]
                rewritten += engine.replace_bodies(
                    shard, [(cell, _encoded(cell, replacement)) for cell in batch]
                )
                failpoint("dictionary.retire.between_batches")
            if found.next_location is None:
                break
            done += found.next_location - location
            location = found.next_location
            on_progress(min(done, total), total)
    return rewritten


def _refuse_left(engine: RewritableEngine, retiring: Dictionary) -> None:
    """Raises ProtectData while a stored body names it."""
    left = engine.bodies_with(_prefix(retiring))
    if not left:
        return
    named = ", ".join(f"{count} in {place}" for place, count in list(left.items())[:_NAMED_MAX])
    raise ProtectData(
        f"{sum(left.values())} bodies name dictionary {retiring.name} still: {named}"
        f"{' and elsewhere' if len(left) > _NAMED_MAX else ''}. Its content is kept. Where a"
        " minion is behind, retire it again later. Where a cluster keeps a shard that has left it:"
        " `cellfeed shard clean`. Anywhere else `cellfeed check` names the damage"
    )


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
