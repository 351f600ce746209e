"""Encrypted backups: no file of theirs shows the users' bodies, any one identity brings them back,
and calls that need no content need no identity."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pyrage
import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.store.backups.backup import Backup, with_identities
from cellfeed.store.backups.base import witness_of
from cellfeed.store.backups.check import dictionaries_known, read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.encryption import Identities, Recipients, identities_of, recipients_of
from cellfeed.store.backups.erasures import recorded_in, to_erase
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.manifest import Reader, encode_manifest
from cellfeed.store.backups.marker import DICTIONARIES, MANIFEST, STATE
from cellfeed.store.backups.prune import decide, remove
from cellfeed.store.backups.register import FILES, Register
from cellfeed.store.backups.register_entries import NOT_DONE, Erasure
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.backups.verify import check_files, verify, verify_without_identity
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell, new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import Sample, train
from cellfeed.store.erasures import ErasureNotes
from cellfeed.store.errors import DataDamaged, InvalidRequest, NotFound, ProtectData
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.rides import rides

SHARDS = 2
NOW_US = 1_900_000_000_000_000
ROW = UUID("5a17b2c4-93f1-4e06-8d2a-c0ffee123456")
ERASED = UUID("0badcafe-1234-4321-8888-0123456789ab")
PENDING = UUID("0ddba11a-5678-4321-9999-0123456789ab")
NAME = "Jane D. Roe"
PARKED = "a parked cell of Jane D. Roe"
COLUMN = "PLANTED_COLUMN"
READER = "planted-consumer-group"
FAILPOINTS = [
    "backup.after_marker",
    "backup.after_state",
    "backup.after_heads",
    "backup.after_log",
    "backup.before_manifest",
    "backup.after_manifest",
]


class Key:
    """An identity in a file of its own."""

    def __init__(self, path: Path) -> None:
        identity = pyrage.x25519.Identity.generate()
        self.secret = str(identity)
        self.recipient = str(identity.to_public())
        self.path = path
        path.write_text(f"# created: today\n# public key: {self.recipient}\n{self.secret}\n")

    def identities(self) -> Identities:
        return Identities([self.path])


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return Key(tmp_path / "key.txt")


@pytest.fixture
def other(tmp_path: Path) -> Key:
    return Key(tmp_path / "other.txt")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Datastore]:
    """With something planted in each place that a backup reads."""
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 300))
        store.put_new_cells([new_cell(ERASED, "BASE", 1, {"rider": NAME})])
        store.erase_row(ERASED)
        store.put_new_cells([new_cell(ROW, COLUMN, 1, {"rider": NAME})])
        store.state.commit({"groups/parked/1": PARKED.encode()})
        store.state.commit({"control/parked/1": PARKED.encode()})
        ErasureNotes(store.state).begin(PENDING)
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


def backed_up(
    store: Datastore, folder: BackupFolder, *keys: Key, onto: Backup | None = None
) -> Backup:
    return create(
        folder,
        Source(store.engine, belongs, [Reader(READER, "trips", 0, 5)]),
        onto=onto,
        recipients=Recipients([each.recipient for each in keys]) if keys else None,
    )


def restored_into(
    directory: Path, folder: BackupFolder, backup: Backup, identities: Identities | None
) -> Datastore:
    """As the command does it."""
    chain = with_identities(folder.chain(backup), identities)
    state = read_state(chain[-1])
    told = recorded_in(
        Register(folder.path, identities=identities), chain[-1], folder.later(chain[-1])
    )
    with dictionaries_known(chain):
        erased = to_erase(chain, state, told)
    gone = [row_key for row_keys in erased.values() for row_key in row_keys]
    made = plan(chain, restored(state, NOW_US, gone), [], {}, NOW_US, "a test", erased)
    with SqliteTarget(directory / "trips", "trips", SHARDS) as target:
        restore(made, target)
    return Datastore.open_embedded(directory, "trips", SHARDS)


def cells(store: Datastore) -> list[list[StoredCell]]:
    return [store.engine.scan(shard, 0, 10_000) for shard in range(SHARDS)]


def as_backed_up(new: Datastore, source: Datastore) -> bool:
    """Whether the restored logs begin with those of the source. Behind them a restore erases the
    row whose erasure was asked for."""
    return all(
        log[: len(before)] == before and len(log) - len(before) <= 1
        for log, before in zip(cells(new), cells(source), strict=True)
    )


def planted() -> dict[str, list[bytes]]:
    """By kind of secret, the forms in which it could stand in a file."""
    found = {
        "a body": [NAME.encode()],
        "a column": [COLUMN.encode()],
        "a state entry": [PARKED.encode(), b"control/parked"],
        "a reader": [READER.encode()],
        "the column of erasures": [ERASED_COLUMN.encode()],
    }
    for what, row in (("a row", ROW), ("an erased row", ERASED), ("a pending row", PENDING)):
        found[what] = [
            row.bytes,
            row.hex.encode(),
            str(row).encode(),
            base64.b64encode(row.bytes)[:20],
        ]
    return found


def shown(place: Path) -> set[str]:
    """The planted texts that are found in any file below."""
    contents = [each.read_bytes() for each in place.rglob("*") if each.is_file()]
    assert contents
    return {
        what
        for what, forms in planted().items()
        if any(form.lower() in content.lower() for form in forms for content in contents)
    }


# --- what stands in the files ---------------------------------------------------------------------


def test_no_file_of_an_encrypted_backup_shows_a_users_data(
    source: Datastore, folder: BackupFolder, tmp_path: Path, key: Key
) -> None:
    plain = BackupFolder(tmp_path / "plain")
    below = backed_up(source, plain)
    assert shown(plain.path) == set(planted()), "else this test looks for the wrong things"

    full = backed_up(source, folder, key)
    source.put_new_cells([new_cell(ROW, COLUMN, 2, {"rider": NAME})])
    source.erase_row(UUID(int=1))
    increment = backed_up(source, folder, key, onto=full)
    assert increment.manifest.cells >= 1
    assert shown(folder.path) == set()

    hashes = {segment.digest for segment in below.manifest.segments}
    hashes |= {log.witness for log in below.manifest.logs}
    texts = [(each.path / MANIFEST).read_text() for each in (full, increment)]
    assert hashes
    assert not any(each in text for each in hashes for text in texts), "a guess can be confirmed"


def test_dictionaries_are_encrypted(
    source: Datastore, folder: BackupFolder, tmp_path: Path, key: Key
) -> None:
    dictionary = train(
        "BASE", [Sample(cell.row_key, cell.body_json) for cell in rides(0, 500)]
    ).dictionary
    publish(source.engine.dictionaries, dictionary, 0)
    source.put_new_cells(rides(1_000, 100))
    backup = backed_up(source, folder, key)
    name = dictionary.sha256.hex().encode()
    plain = backed_up(source, BackupFolder(tmp_path / "plain"))
    assert name in (plain.path / MANIFEST).read_bytes()
    assert name not in (backup.path / MANIFEST).read_bytes()
    text = (plain.path / DICTIONARIES).read_bytes()[:200]
    assert text not in (backup.path / DICTIONARIES).read_bytes()
    with restored_into(tmp_path / "new", folder, backup, key.identities()) as store:
        assert as_backed_up(store, source)


def test_the_witness_of_a_plain_backup_keeps_its_value(
    source: Datastore, folder: BackupFolder, key: Key, tmp_path: Path
) -> None:
    last = [log[-1] for log in cells(source)]
    plain = backed_up(source, folder).manifest.logs
    encrypted = backed_up(source, BackupFolder(tmp_path / "encrypted"), key).manifest.logs
    assert [log.witness for log in plain] == [witness_of(each) for each in last]
    assert {log.witness for log in plain}.isdisjoint(log.witness for log in encrypted)


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_killed_encrypted_backup_shows_no_data_and_leaves_the_files_of_a_killed_plain_one(
    source: Datastore, folder: BackupFolder, tmp_path: Path, key: Key, failpoint: str
) -> None:
    plain = BackupFolder(tmp_path / "plain")
    for each, keys in ((plain, ()), (folder, (key,))):
        set_failpoint(failpoint, "raise")
        with pytest.raises(FailpointReached):
            backed_up(source, each, *keys)
        clear_failpoints()
    assert left(plain) == left(folder)
    assert shown(folder.path) == set()
    backed_up(source, folder, key)
    finished = int(failpoint == "backup.after_manifest")
    assert [len(each) for each in folder.look()] == [1 + finished, 0]


def left(folder: BackupFolder) -> list[str]:
    """Names of files, without those of folders, which are drawn."""
    return sorted(each.name for each in folder.path.rglob("*") if each.is_file())


def test_many_state_entries_share_a_message(
    source: Datastore, folder: BackupFolder, key: Key
) -> None:
    source.state.commit({f"control/many/{number}": b"x" * 40 for number in range(500)})
    backup = backed_up(source, folder, key)
    assert (backup.path / STATE).stat().st_size < 500 * 100
    [opened] = with_identities([backup], key.identities())
    assert sum(name.startswith("control/many/") for name, _ in read_state(opened)) == 500


# --- restores -------------------------------------------------------------------------------------


def test_any_one_identity_brings_a_backup_and_its_increments_back(
    source: Datastore, folder: BackupFolder, tmp_path: Path, key: Key, other: Key
) -> None:
    full = backed_up(source, folder, key, other)
    source.put_new_cells(rides(300, 3_000))
    increment = backed_up(source, folder, other, key, onto=full)
    for each in (key, other):
        chain = with_identities(folder.chain(increment), each.identities())
        assert verify(chain) == []
        with restored_into(tmp_path / each.path.stem, folder, increment, each.identities()) as new:
            assert as_backed_up(new, source)


def test_a_row_that_was_erased_since_is_erased_again(
    source: Datastore, folder: BackupFolder, tmp_path: Path, key: Key
) -> None:
    old = backed_up(source, folder, key)
    source.erase_row(ROW)
    for shard in range(SHARDS):
        source.trim(shard, source.heads()[shard].watermark)
    shutil.rmtree(backed_up(source, folder, key).path)
    with restored_into(tmp_path / "new", folder, old, key.identities()) as store:
        assert not any(NAME.encode() in cell.body for log in cells(store) for cell in log)
        assert any(cell.row_key == ROW.bytes for log in cells(store) for cell in log)


def test_the_encrypted_register_has_the_content_of_a_plain_one(
    source: Datastore, folder: BackupFolder, tmp_path: Path, key: Key
) -> None:
    plain = BackupFolder(tmp_path / "plain")
    for row in (UUID(int=1), UUID(int=2), UUID(int=1)):
        for each, keys in ((plain, ()), (folder, (key,))):
            backed_up(source, each, *keys)
        source.put_new_cells([new_cell(row, "BASE", 1, {})] if row.int == 2 else [])
        source.erase_row(row)
    sizes = []
    for _ in range(3):
        for each, keys in ((plain, ()), (folder, (key,))):
            backed_up(source, each, *keys)
        entries = Register(folder.path, identities=key.identities()).entries()
        assert {each.key for each in entries} == {
            each.key for each in Register(plain.path).entries()
        }
        assert len({each.key for each in entries}) == len(entries)
        sizes.append((folder.path / FILES[0]).read_bytes().count(b"\n"))
    pending = sum(each.added_id == NOT_DONE for each in entries)
    assert pending == 1
    assert sizes[2] - sizes[1] <= pending, "only what has no id yet is added again"


def test_two_rows_whose_erasures_were_asked_for_in_one_moment_are_both_in_the_register(
    folder: BackupFolder, key: Key
) -> None:
    folder.path.mkdir()
    recipients = Recipients([key.recipient])
    asked = [
        Erasure("trips", SHARDS, 0, UUID(int=number).hex, NOT_DONE, NOW_US) for number in (1, 2)
    ]
    for each in asked:
        Register(folder.path, recipients).add([each])
    assert Register(folder.path, identities=key.identities()).entries() == asked


def test_damage_is_found_without_an_identity_in_every_file(
    source: Datastore, folder: BackupFolder, key: Key
) -> None:
    full = backed_up(source, folder, key)
    source.put_new_cells(rides(300, 20))
    chain = folder.chain(backed_up(source, folder, key, onto=full))
    assert verify_without_identity(chain) == []
    for backup in chain:
        for file in backup.manifest.files:
            path = backup.path / file.name
            whole = path.read_bytes()
            path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
            assert len(verify_without_identity(chain)) == 1, file.name
            assert verify(with_identities(chain, key.identities())) != []
            path.write_bytes(whole)


def test_ciphertext_that_was_put_in_the_place_of_another_is_damage(
    source: Datastore, folder: BackupFolder, key: Key
) -> None:
    backup = backed_up(source, folder, key)
    told = backup.manifest
    forged = told.__class__(
        **{name: getattr(told, name) for name in told.__struct_fields__ if name != "private"},
        private=base64.b64encode(Recipients([key.recipient]).encrypt(b'{"digests":[]}')).decode(),
    )
    (backup.path / MANIFEST).write_bytes(encode_manifest(forged))
    with pytest.raises(DataDamaged, match="private part is damaged"):
        with_identities([folder.get(backup.name)], key.identities())


# --- identities and recipients --------------------------------------------------------------------


def test_a_wrong_or_a_missing_identity_is_one_clear_error(
    source: Datastore, folder: BackupFolder, tmp_path: Path, key: Key, other: Key
) -> None:
    backup = backed_up(source, folder, key)
    with pytest.raises(InvalidRequest) as wrong:
        restored_into(tmp_path / "new", folder, backup, other.identities())
    assert key.recipient in str(wrong.value)
    assert other.recipient in str(wrong.value)
    assert other.secret not in str(wrong.value)
    with pytest.raises(InvalidRequest, match="with --identity") as missing:
        restored_into(tmp_path / "new", folder, backup, None)
    assert key.recipient in str(missing.value)
    assert not (tmp_path / "new").exists()
    with pytest.raises(InvalidRequest, match="with --identity"):
        read_state(backup)


def test_two_files_of_identities_open_a_folder_whose_recipients_were_changed(
    source: Datastore, folder: BackupFolder, tmp_path: Path, key: Key, other: Key
) -> None:
    backed_up(source, folder, key)
    source.erase_row(UUID(int=2))
    newer = backed_up(source, folder, other)
    with pytest.raises(InvalidRequest, match=key.recipient):  # the register has entries of both
        restored_into(tmp_path / "new", folder, newer, other.identities())
    both = identities_of([key.path, other.path])
    with restored_into(tmp_path / "both", folder, newer, both) as store:
        assert as_backed_up(store, source)


@pytest.mark.parametrize("given", ["none", "another", "one more"])
def test_an_increment_has_the_recipients_of_its_base(
    source: Datastore, folder: BackupFolder, key: Key, other: Key, given: str
) -> None:
    full = backed_up(source, folder, key)
    keys: Sequence[Key] = {"none": (), "another": (other,), "one more": (key, other)}[given]
    with pytest.raises(ProtectData, match="same recipients"):
        backed_up(source, folder, *keys, onto=full)
    assert [len(each) for each in folder.look()] == [1, 0]


def test_an_increment_onto_an_encrypted_backup_of_another_log_is_refused(
    source: Datastore, folder: BackupFolder, tmp_path: Path, key: Key
) -> None:
    full = backed_up(source, folder, key)
    with Datastore.open_embedded(tmp_path / "again", "trips", SHARDS) as again:
        again.put_new_cells(rides(0, 400))
        with pytest.raises(ProtectData):
            backed_up(again, folder, key, onto=full)


def test_a_store_put_back_from_an_older_copy_takes_no_increment(
    tmp_path: Path, folder: BackupFolder, key: Key
) -> None:
    """Of the same history and with the same ends; only the last cell's moment differs."""
    place, copy = tmp_path / "source", tmp_path / "copy"
    with Datastore.open_embedded(place, "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 100))
    shutil.copytree(place, copy)
    with Datastore.open_embedded(place, "trips", SHARDS) as store:
        store.put_new_cells(rides(100, 50))
        full = backed_up(store, folder, key)
    with Datastore.open_embedded(copy, "trips", SHARDS) as store:
        store.put_new_cells(rides(100, 60))
        with pytest.raises(ProtectData, match="is not the log"):
            backed_up(store, folder, key, onto=full)


def test_a_folder_of_backups_is_encrypted_as_a_whole_or_not_at_all(
    source: Datastore, folder: BackupFolder, tmp_path: Path, key: Key
) -> None:
    first = backed_up(source, folder, key)
    with pytest.raises(ProtectData, match="give --recipient"):
        backed_up(source, folder)
    shutil.rmtree(first.path)
    with pytest.raises(ProtectData, match="give --recipient"):  # the register alone says so
        backed_up(source, folder)
    plain = BackupFolder(tmp_path / "plain")
    backed_up(source, plain)
    for path in FILES:
        (plain.path / path).unlink()
    with pytest.raises(ProtectData, match="a folder of their own"):
        backed_up(source, plain, key)


def test_prune_and_names_need_no_identity(
    source: Datastore, folder: BackupFolder, key: Key
) -> None:
    old = backed_up(source, folder, key)
    on_it = backed_up(source, folder, key, onto=old)
    new = backed_up(source, folder, key)
    assert folder.get(None, "trips").name == new.name
    with folder.locked():
        decision = decide(folder, 0, new.manifest.created_at_us)
        assert {each.marker.name for each in decision.goes} == {old.name, on_it.name}
        remove(folder, decision.goes)
    assert check_files(folder.chain(folder.get(None))) == []
    with pytest.raises(NotFound):
        folder.get(old.name)


def test_recipients_are_read_from_arguments_and_files(tmp_path: Path, key: Key, other: Key) -> None:
    listed = tmp_path / "recipients"
    listed.write_text(f"# the office\n\n  {other.recipient}\n{key.recipient}\n")
    found = recipients_of([key.recipient], [listed])
    assert found is not None
    assert found.keys == tuple(sorted({key.recipient, other.recipient}))
    assert recipients_of([], []) is None


def test_an_invalid_recipient_or_identity_is_refused_and_no_secret_is_shown(
    tmp_path: Path, key: Key
) -> None:
    encrypted = tmp_path / "encrypted"
    encrypted.write_text("-----BEGIN AGE ENCRYPTED FILE-----\n")
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")
    cut = tmp_path / "cut"
    cut.write_text(f"# a key\n{key.secret[:-4]}\n")
    for ask, says in (
        (lambda: recipients_of(["age1xyz"], []), "no age recipient"),
        (lambda: recipients_of([key.secret], []), "a secret key stands"),
        (lambda: recipients_of([], [key.path]), "line 3: a secret key stands"),
        (lambda: recipients_of([], [empty]), "no age key"),
        (lambda: identities_of([cut]), "line 2: no age identity"),
        (lambda: identities_of([encrypted]), "with a passphrase"),
        (lambda: identities_of([empty]), "no age key"),
    ):
        with pytest.raises(InvalidRequest, match=says) as refused:
            ask()
        assert key.secret[20:-6] not in str(refused.value)
