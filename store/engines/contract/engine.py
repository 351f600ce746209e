"""The promises of a storage engine. Every engine passes ``tests/contract/engine/``, which
cites these numbers.

Writing
    E1  ``put`` writes its new cells of a commit group in one transaction, all or none, across all
        their shards.
    E2  New cells of a shard get the next added_ids in the order given: gapless from 0 (but for
        E23), in commit order. The counter row is locked before anything is read and held to the
        commit, also against other processes on the same storage.
    E3  A triple is stored once. Again with the same body: ``exists`` with the first added_id; with
        another: ``conflict``. Neither uses up an id, and neither keeps the other cells of the call
        from being written.
    E4  ``created_at_us`` of a shard never goes back: it is the later of the storage's clock and the
        shard's last one.
    E5  When ``put`` returns, its cells are on disk. Before they are, no reader sees any of them.
    E6  ``put`` raises StorageUnavailable when nothing was written, OutcomeUnknown when the commit
        was sent and its fate is not known. A failure uses up no id, and the engine stays usable.
    E24 A put of a triple whose stored body is damaged, or needs a dictionary that is lost, is
        ``failed`` with that error, definitely: nothing of it is written. The other cells of the
        call are written as if it had not been there.
Reading
    E7  ``scan`` (``scan_many``) returns the cells below the watermark in ascending added_id, from
        the location asked for. An id once shown keeps its cell. From a location below the log start
        it raises Trimmed: nothing is skipped silently.
    E8  ``heads`` gives every shard's log start, watermark, next added_id and leader epoch from one
        consistent look.
    E28 ``heads_since`` gives the head of every shard whose head differs from the one at the look
        that gave the mark; without a mark, of every shard. Every commit of any process before the
        call began is in it. A commit during a look may be in two answers, never in none.
    E9  ``locate`` finds the first added_id at or after a moment (the end of the log when there is
        none).
    E10 ``get``, ``latest`` and ``row`` see every cell whose put has returned. The latest cell is
        the one with the highest ref key. An answer from a minion, asked for or because the master
        is away, is marked ``stale``. Only the master may answer "not there".
    E14 ``columns`` names every column that a cell of the datastore has, from the moment its first
        put returns.
    E26 ``get``, ``latest`` and ``row`` answer for the first of the keys asked for. The last cell is
        the one whose body brings the answer to ``READ_BYTES_MAX``, decoded; the last row may end
        with it. An answer with fewer bytes is whole. One key, or one column behind
        ``after_column``, is never cut.
    E16 ``superseded`` names only cells that have a newer one (the same row key and column, a higher
        ref key) in the given part of the log. Asked of storage that is not behind, it names all of
        them. So it never names the newest cell of that part.
    E17 ``dictionaries`` keeps the dictionaries of bodies as safely as the bodies themselves: C1–C4
        of :mod:`cellfeed.store.engines.contract.dictionaries`.
Moving
    E18 A shard that moves from one storage to another takes its log along unchanged: ids, bodies,
        ``created_at``, log start, next id, and its index entries. The leader epoch rises. No kill,
        pause or promotion makes two storages take its puts at the same moment.
    E19 A call about a shard that moves waits for it, or raises ShardMoving (nothing written). A
        storage that the shard has left never answers it. A reader still sees after the move all
        that it saw before: no watermark, log start or leader epoch falls.
Trimming
    E15 ``trim`` raises a shard's log start and deletes the cells below it, in one transaction a
        step. So at every moment the log is there from its start on, without a gap. The start never
        falls; ids do not move. ``next_added_id``, epochs and ``created_at`` continue as if nothing
        had been trimmed, also in a log that is empty then. Trimmed cells are gone for ``get``,
        ``latest`` and ``row`` as well. **A trimmed triple may be put again, as a new cell with a
        new id**: E3 holds for the cells that the log has. Nothing at or above ``trim_limits`` is
        trimmed.
Erasing
    E20 ``erase`` takes the bodies of all cells of a row away and leaves their places: added_id, row
        key, column, ref key and ``created_at`` stay, the body is ``ERASED_BODY`` from then on. The
        first step adds one cell to the log, ``(row key, ERASED_COLUMN, 0)`` with no body. It does
        so in the transaction that takes the first bodies (none, where ``cells_max`` is 0). So a
        follower of the log meets it in order, behind all cells of the row. Ids, heads and epochs
        continue as with a put. A row is erased once: a second call does nothing, or completes a
        step that died.
    E21 From the first step on, a put to the row is refused (``failed``, RowErased), also of a cell
        that it has, for as long as its log has the entry. A trim ends that, as it does for every
        triple. ``Head.erasures`` differs once a step was done, on each node from the moment that it
        has the step.
Rewriting
    E27 ``replace_bodies`` stores bodies in another encoding, in a transaction that is fenced,
        replicated and acknowledged as a put's is. Nothing else of a cell changes. A cell that
        differs from the one given (its row was erased, it was trimmed) is left as it is. While a
        move copies the shard, ShardMoving is raised. ``settle_puts`` returns when every put to the
        shard that began before has ended: later ones see the commits from before the call.
State
    E11 ``state`` is a durable key-value table beside the log: every write raises the table's
        revision, ``commit`` writes all or none, and only if each expected version still holds.
Restores
    E22 A restore (:mod:`cellfeed.store.backups.restore`) writes only into storage that has never
        had a cell. It restores the backup byte for byte, under its own ids, with its times,
        columns, dictionaries and log starts. Until all of it is there and was read back, nobody can
        open the storage, nor write to it with knowledge from before the restore.
    E23 After a restore every new id is above the end of the backup, and above each id that the
        restore was given as already read. The leader epoch is higher than all that are known, and
        begins at the end of the backup. Ids that were left out never get a cell: ``scan``
        continues with the next cell, which is always there, and no watermark lies among them.
Life
    E12 Any number of threads may call an engine. ``close`` waits for calls under way; later calls
        raise StorageUnavailable. So do all calls in a child that was forked since the engine was
        opened: there ``close`` does nothing, and the parent's connections stay as they are.
    E13 Storage of another datastore, shard count or schema version is refused (ProtectData).
    E25 ``history.history_id`` names the history: drawn when the storage is made, and by every
        restore. Opening storage that has lost a part, or whose part has another history's identity,
        is refused (ProtectData, with both identities and the cure).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cellfeed.store.cells.cell import NewCell, StoredCell, Triple
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.contract.dictionaries import DictionaryStore
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    HeadChanges,
    LocatedCell,
    LogRange,
    Replica,
)
from cellfeed.store.histories import History
from cellfeed.store.limits import ERASE_STEP_CELLS, READ_KEYS_MAX, TRIM_STEP_CELLS


class Engine(Protocol):
    """See the module's promises."""

    @property
    def datastore(self) -> str: ...

    @property
    def shards(self) -> int: ...

    @property
    def history(self) -> History:
        """The identity of the history (:mod:`cellfeed.store.histories`): the same for everybody who
        opens the storage, and another one after every restore. Empty where the storage has none.
        E25."""
        ...

    @property
    def state(self) -> StateTable: ...

    def commit_group(self, shard: int) -> str:
        """Shards of the same group are written in one transaction. An engine on one storage has one
        group; one over several clusters has one for each."""
        ...

    @property
    def indexes(self) -> IndexStore:
        """The tables of secondary indexes."""
        ...

    @property
    def dictionaries(self) -> DictionaryStore:
        """The dictionaries of bodies of codec 3."""
        ...

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        """Outcome per cell, in order: stored, exists or conflict. E1–E6."""
        ...

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]: ...

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        """For each (row key, column name) the cell with the highest ref key."""
        ...

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        """For each row key the latest cell of every column, by column name; of the first row those
        behind ``after_column``."""
        ...

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        """Every cell of a row, not the latest ones alone, by added_id from behind ``after`` on; the
        master's word. Raises StorageUnavailable."""
        ...

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        """At most ``limit`` cells from added_id ``location`` on, below the watermark; ends early
        after ``SCAN_BYTES_MAX``, and ``SCAN_DECODED_BYTES_MAX``."""
        ...

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        """:meth:`scan` of each range, with fewer round trips. For ranges that are small together:
        the ends of many logs. Once the ranges have reached ``SCAN_DECODED_BYTES_MAX`` together,
        each further one gives a cell."""
        ...

    def superseded(
        self, shard: int, start: int, end: int, log_start: int, watermark: int
    ) -> set[int]:
        """The added_ids from ``start`` up to, not including, ``end`` that have a newer cell from
        ``log_start`` up to ``watermark``: one query, and one search of the index by key for each
        cell of the range."""
        ...

    def locate(self, shard: int, created_at_us: int) -> int: ...

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]: ...

    def heads_since(self, mark: object | None) -> HeadChanges:
        """The heads that changed since the look that gave ``mark`` (None: all heads), and the next
        mark. A mark is good for the engine object that gave it. E28."""
        ...

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        """By shard the leader epoch and the next added_id, as its master reports them after the
        call began: every cell that was acknowledged before is below. A shard is left out while its
        master cannot be asked, or another one may have been promoted."""
        ...

    def trim_limits(self, shards: Sequence[int]) -> dict[int, int]:
        """By shard the id from which on nothing may be trimmed now: at most the watermark, and at
        most the end that every minion has reached. Raises StorageUnavailable while that is not
        known."""
        ...

    def trim(self, shard: int, below: int, cells_max: int = TRIM_STEP_CELLS) -> int:
        """One step of a trim below added_id ``below``: deletes the first cells of the log, at most
        ``cells_max``, and returns where it starts then. Raises InvalidLocation beyond the limit,
        StorageUnavailable when nothing was done, OutcomeUnknown when that is not known: then it is
        repeated. E15."""
        ...

    def erase(self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS) -> ErasedStep:
        """One step of an erasure: at most ``cells_max`` bodies of the row; repeated until it is
        done. Raises StorageUnavailable when nothing was done, OutcomeUnknown when that is not
        known: then it is repeated. E20, E21."""
        ...

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        """``(leader epoch, first added_id written under it)``, ascending."""
        ...

    def columns(self) -> list[str]:
        """The names of all columns, in order of their UTF-8 bytes."""
        ...

    def change_token(self) -> int:
        """A number that differs when something was committed since; much cheaper than ``heads``."""
        ...

    def close(self) -> None: ...
