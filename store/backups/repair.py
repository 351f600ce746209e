"""Replaces damaged and lost cells with good copies: from another node of the cluster, or from a
backup.

A copy counts only when it is verified: its storage belongs to the same history, its checksum fits
(a cell without one is no good copy), its row belongs to the shard. A cell of an erased row is
restored without its body. Without a good copy nothing is changed. Every replaced cell is reported.

A cell is replaced in one transaction of its storage, behind the shard's counter: so no put, trim or
erasure comes between the look at it and the write. The latest cells come first, for the entry of an
erasure lies behind the cells of its row. Storage whose pages or index of keys are damaged is not
written to: an erasure may be missing there. A repair of a node is no part of the cluster's history:
it is not in the binary log, and the other nodes keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from cellfeed.store.backups.backup import Backup, with_identities
from cellfeed.store.backups.check import dictionaries_known, read_segment
from cellfeed.store.backups.encryption import Identities
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.manifest import Manifest
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.verify import check_files
from cellfeed.store.cells.body_codec import ERASED_BODY, decode_body, dictionaries_named
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.findings import Finding, Findings
from cellfeed.store.errors import CellfeedError

IDS_MAX: Final = 100_000
"""Cells that one repair replaces at most in a range: of a node that has lost more a copy is made
(`cellfeed cluster rejoin --copy`)."""


class Source(Protocol):
    """Somewhere that verified copies come from."""

    @property
    def name(self) -> str: ...

    def cells(self, shard: int, ids: Sequence[int]) -> dict[int, StoredCell]:
        """Those that it has, each verified, by added_id. Raises CellfeedError when it cannot be
        read."""
        ...


class Mender(Protocol):
    """A storage whose cells are replaced."""

    def mend(self, shard: int, cells: Sequence[StoredCell]) -> None:
        """Puts these cells in their places, all or none; without the body where the row is erased.
        Raises CellfeedError."""
        ...


def repair(
    found: Findings,
    menders: Mapping[str, Mender],
    sources: Mapping[str, Sequence[Source]],
    shards: int,
) -> None:
    """Mends those findings that it can; each names the replaced cells, or says why there are none.
    ``menders``, ``sources``: by the place of a finding."""
    broken = {
        each.place for each in found.found if each.kind in ("integrity", "key") and not each.mended
    }
    concerned = [
        (each.ids.start, index)
        for index, each in enumerate(found.found)
        if each.kind in ("checksum", "gap", "unread") and each.ids is not None
    ]
    for _, index in sorted(concerned, reverse=True):
        finding = found.found[index]
        if finding.place in broken:
            found.found[index] = replace(
                finding,
                text=(
                    f"{finding.text} (not mended, nothing changed: the storage itself is damaged,"
                    " see its other findings)"
                ),
            )
        elif finding.place in menders:
            found.found[index] = _mended(
                finding, menders[finding.place], sources.get(finding.place, ()), shards
            )


def _mended(finding: Finding, mender: Mender, sources: Sequence[Source], shards: int) -> Finding:
    assert finding.shard is not None and finding.ids is not None  # noqa: S101, PT018 - its caller has asked
    if len(finding.ids) > IDS_MAX:
        return replace(finding, text=f"{finding.text} (not mended: more than {IDS_MAX} cells)")
    good: dict[int, StoredCell] = {}
    recorded, why_not = [], []
    for source in sources:
        if not (wanted := [each for each in finding.ids if each not in good]):
            break
        try:
            cells = source.cells(finding.shard, wanted)
        except CellfeedError as error:
            why_not.append(f"{source.name}: {error}")
            continue
        fitting = {
            added_id: cell
            for added_id, cell in cells.items()
            if shard_of(cell.row_key, shards) == finding.shard
        }
        if fitting:
            good |= fitting
            recorded.append(f"{_ids(sorted(fitting))} by the copy of {source.name}")
    if missing := [each for each in finding.ids if each not in good]:
        asked = ", ".join(source.name for source in sources)
        reasons = (
            "; ".join(why_not)
            or f"no verified copy on {asked or 'any other node, and no backup was named'}"
        )
        return replace(
            finding,
            text=f"{finding.text} (not mended, nothing changed: {_ids(missing)}: {reasons})",
        )
    try:
        mender.mend(finding.shard, [good[each] for each in finding.ids])
    except CellfeedError as error:
        return replace(finding, text=f"{finding.text} (not mended, nothing changed: {error})")
    return replace(finding, mended=f"shard {finding.shard}: replaced {', '.join(recorded)}")


def _ids(ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return f"added_id {ids[0]}"
    if ids[-1] - ids[0] == len(ids) - 1:
        return f"added_ids {ids[0]} to {ids[-1]}"
    return f"added_ids {', '.join(map(str, ids[:10]))}{' …' if len(ids) > 10 else ''}"


class BackupSource:
    """The backups of a folder that were taken of one history, the newest first. A backup is taken
    as a whole: one whose files are damaged, or whose history is another one or unknown, gives
    nothing. Rows of the folder's register of erasures come without their bodies; while it cannot be
    read, nothing does. ``identities``: the keys that decrypt encrypted ones."""

    def __init__(
        self,
        folder: Path | Place,
        datastore: str,
        shards: int,
        history_id: str,
        identities: Identities | None = None,
    ) -> None:
        self._folder = BackupFolder(folder)
        self._identities = identities
        self._of = datastore, shards
        self._history_id = history_id
        self.name = f"the backups in {folder}"

    def cells(self, shard: int, ids: Sequence[int]) -> dict[int, StoredCell]:
        found: dict[int, StoredCell] = {}
        backups, _ = self._folder.look()
        recorded = Register(self._folder.place, identities=self._identities).entries(
            (each.name, each.manifest.register) for each in backups
        )
        erased = {UUID(each.row_key).bytes for each in recorded if each.datastore == self._of[0]}
        for chain in self._chains(backups):
            wanted = [each for each in ids if each not in found]
            if wanted and not check_files(chain):
                chain = with_identities(chain, self._identities)
                with dictionaries_known(chain):
                    for backup in chain:
                        found |= _backed(backup, shard, set(wanted))
        return {
            added_id: cell._replace(body=ERASED_BODY) if cell.row_key in erased else cell
            for added_id, cell in found.items()
        }

    def _chains(self, backups: Sequence[Backup]) -> Iterator[list[Backup]]:
        """The newest backup's, and those of the full backups before it."""
        covered: set[str] = set()
        for backup in reversed(backups):
            if backup.name in covered:
                continue
            try:
                chain = self._folder.chain(backup)
            except CellfeedError:
                continue  # an older one may be whole
            if all(self._is_own(each.manifest) for each in chain):
                covered.update(each.name for each in chain)
                yield chain

    def _is_own(self, recorded: Manifest) -> bool:
        return (
            (recorded.datastore, recorded.shards) == self._of
            and bool(self._history_id)
            and recorded.history.history_id == self._history_id
        )


def _readable(cell: StoredCell) -> StoredCell:
    """The cell with a body that needs no dictionary: the store may have retired it since."""
    if dictionaries_named([cell.body]):
        return cell._replace(body=encode_body(decode_body(cell.body)))
    return cell


def _backed(backup: Backup, shard: int, wanted: set[int]) -> dict[int, StoredCell]:
    found: dict[int, StoredCell] = {}
    for segment in backup.manifest.segments:
        if segment.shard == shard and any(
            segment.from_id <= each < segment.below_id for each in wanted
        ):
            # To its end: only there is it known to be whole.
            found |= {
                cell.added_id: _readable(cell)
                for cells in read_segment(backup, segment)
                for cell in cells
                if cell.added_id in wanted
            }
    return found
