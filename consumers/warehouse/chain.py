"""The commits of one shard: a chain in which each starts where the one before ended.

A commit is a file named by the id it starts from, made by put-if-absent. So of several loaders that
stand at the same position exactly one commits, even if they gathered different rows; the others
find the place taken, discard their file and continue behind the winner. The position of the shard
is the end of the chain; nothing else is asked, Kafka's group offset included.

Crash points of :meth:`ShardChain.append`, with the remains of each:

- before the commit's name exists: a staged file, which :func:`recover_shard` or another loader's
  start removes once its lock is free;
- after it, before its directory is on disk: a power cut may take the commit back; then the shard is
  where it was, and nobody was answered otherwise;
- after that, before the rename: the commit stands; the next reader of the chain moves the staged
  file into place (:func:`place_data_file`);
- after the rename, before its directories are on disk: the same again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from cellfeed.consumers.warehouse.layout import (
    COMMITS,
    STAGING,
    START,
    CommitRecord,
    Position,
    commit_file,
    decode_commit,
    encode_commit,
    shard_folder,
)
from cellfeed.consumers.warehouse.staging import put_if_absent, try_lock_abandoned
from cellfeed.store.backups.synced import make_folders, sync_folder
from cellfeed.store.errors import DataDamaged
from cellfeed.store.failpoints import declare, failpoint

declare(
    "warehouse.commit.before_link",
    "warehouse.commit.linked",
    "warehouse.commit.durable",
    "warehouse.place.renamed",
    "warehouse.recover.before_remove",
)


class ShardChain:
    """One shard's commits as this process knows them; :meth:`refresh` reads the commits that others
    added."""

    def __init__(self, directory: Path, shard: int) -> None:
        self.directory = directory
        self.shard = shard
        self.commits: list[CommitRecord] = []
        self.refresh()

    @property
    def position(self) -> Position:
        """Where the next commit starts."""
        return (
            Position(self.commits[-1].next_id, self.commits[-1].next_offset)
            if self.commits
            else START
        )

    def refresh(self) -> bool:
        """Follows the chain to its end; returns whether it grew. Raises DataDamaged when a commit
        does not fit its predecessor."""
        known = len(self.commits)
        while (commit := self._read(self.position)) is not None:
            self.commits.append(commit)
        return len(self.commits) > known

    def append(self, commit: CommitRecord) -> bool:
        """Makes ``commit`` the next of the chain and moves its data into place; returns False when
        another loader's stands there already.

        The staged file that it names is finished and still locked by the caller. On False the chain
        has been refreshed and the caller discards its file.
        """
        path = commit_file(self.directory, self.shard, commit.start_id)
        make_folders(path.parent)
        failpoint("warehouse.commit.before_link")
        won = put_if_absent(
            path, encode_commit(commit), self.directory / STAGING, f"{self.shard:04d}"
        )
        failpoint("warehouse.commit.linked")
        sync_folder(path.parent)
        failpoint("warehouse.commit.durable")
        if won:
            self.commits.append(commit)
            place_data_file(self.directory, commit)
        else:
            self.refresh()
        return won

    def _read(self, position: Position) -> CommitRecord | None:
        path = commit_file(self.directory, self.shard, position.next_id)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        commit = decode_commit(text, path)
        if commit.start_offset != position.next_offset:
            raise DataDamaged(
                f"{path} starts at offset {commit.start_offset}; the commit before it ended at"
                f" {position.next_offset}"
            )
        return commit


def place_data_file(directory: Path, commit: CommitRecord) -> Path:
    """Moves a committed file from staging to its name, if nobody has yet; returns the path. Any
    process may do it, any number of times.

    Raises DataDamaged when the commit's data is in neither place.
    """
    target = directory / commit.file
    if target.exists():
        return target
    source = directory / STAGING / commit.staged
    make_folders(target.parent)
    # Another process may be faster by a moment; then the file is in place, which the check below
    # sees.
    with contextlib.suppress(FileNotFoundError):
        source.rename(target)
    failpoint("warehouse.place.renamed")
    if not target.exists():
        raise DataDamaged(
            f"{target} is missing: its commit stands, but the data is neither there nor staged as"
            f" {commit.staged}"
        )
    sync_folder(target.parent)
    sync_folder(source.parent)
    return target


def recover_shard(chain: ShardChain) -> None:
    """Finishes the commits of dead loaders of a shard and removes files that they can no longer
    commit. Safe beside living loaders."""
    for commit in chain.commits:
        place_data_file(chain.directory, commit)
    for path in sorted((chain.directory / STAGING).glob(f"{chain.shard:04d}-*")):
        file = try_lock_abandoned(path)
        if file is None:
            continue
        with file:
            # Its owner is dead and cannot commit any longer, so the chain is final from here
            # on.
            chain.refresh()
            named = [commit for commit in chain.commits if commit.staged == path.name]
            failpoint("warehouse.recover.before_remove")
            if named:
                place_data_file(chain.directory, named[0])
            else:
                path.unlink(missing_ok=True)


def check_no_stray_commits(chain: ShardChain) -> None:
    """Raises DataDamaged when the shard has commit files that the chain does not lead to."""
    folder = chain.directory / COMMITS / shard_folder(chain.shard)
    listed = {path.name for path in folder.glob("*.json")} if folder.is_dir() else set()
    chain.refresh()
    stray = listed - {
        commit_file(chain.directory, chain.shard, commit.start_id).name for commit in chain.commits
    }
    if stray:
        raise DataDamaged(
            f"{folder} holds commits that no chain leads to: {', '.join(sorted(stray)[:5])}"
        )
