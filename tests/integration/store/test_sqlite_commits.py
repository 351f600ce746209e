"""A commit of an embedded store that fails, or is followed by something that fails: the caller's
answer is true of the store."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

import cellfeed.store.engines.sqlite.files as sqlite_files
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite import checkpoints
from cellfeed.store.failpoints import watch_failpoint
from tests.support.small_disk import NoSmallDisk, fill, make_room, small_disk

ROOT = Path(__file__).parents[3]
SHARDS = 4
SMALL_DISK_BYTES = 24 << 20

AT_THE_DESCRIPTOR_LIMIT = f"""
import os, sys, resource
from pathlib import Path
from uuid import UUID
from cellfeed.store.engines.sqlite import checkpoints
from cellfeed.store.datastore import Datastore
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.engines.contract.index_values import Entry, IndexTable

checkpoints.CHECKPOINT_FRAMES = 0
store = Datastore.open_embedded(Path(sys.argv[1]), shards={SHARDS})
table = IndexTable("index_t", ((0,),), (None,))
store.engine.indexes.create(table)
store.put_cell(UUID(int=9), "BASE", 1, {{"n": 9}})
for file in (store.engine._file, store.engine._state_file, store.engine._index_file.opened):
    kept = file._checkpoints
    if kept._checkpointer is not None:
        kept._checkpointer.close()
        kept._checkpointer = None
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error.errno, flush=True)
"""

CALLS = {
    "put": (
        "print([str(r.outcome) for r in store.put_cells([(UUID(int=n), 'BASE', 1, {'n': n}) for n"
        " in range(4)])])"
    ),
    # It also looks for other files in the folder, which takes a descriptor: repeated, it is done.
    "erase": (
        "from cellfeed.store.errors import OutcomeUnknown\n"
        "try:\n    print(store.engine.erase(UUID(int=9).bytes).cells)\n"
        "except OutcomeUnknown:\n    print('unknown')"
    ),
    "trim": "print(store.engine.trim(store.shard_of(UUID(int=9)), 1))",
    "state": "print(store.state.commit({'key': b'value'}))",
    "dictionary": (
        "store.engine.dictionaries.add(Dictionary('BASE', b'x' * 5000, 1, 1)); print('added')"
    ),
    "index": (
        "store.engine.indexes.apply(table, {0: [Entry(b'r' * 16, True, (1,), (1,))]});"
        " print('applied')"
    ),
}
TOLD = {
    "put": "['stored', 'stored', 'stored', 'stored']",
    "erase": "unknown",
    "trim": "1",
    "state": "1",
    "dictionary": "added",
    "index": "applied",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_write_at_the_descriptor_limit_is_answered_as_it_went(tmp_path: Path, call: str) -> None:
    program = AT_THE_DESCRIPTOR_LIMIT + CALLS[call]
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == ["24", TOLD[call]], done.stderr
    assert "no checkpoint just now" in done.stderr, "none was tried: nothing was at stake"


@pytest.mark.parametrize("broken", ["connect", "checkpoint"])
def test_an_error_behind_the_commit_fails_no_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    with Datastore.open_embedded(tmp_path, shards=SHARDS) as store:
        monkeypatch.setattr(checkpoints, "CHECKPOINT_FRAMES", 0)

        def fail() -> None:
            raise MemoryError("no memory")

        if broken == "connect":
            monkeypatch.setattr(sqlite_files, "connect", lambda _: fail())
        else:
            watch_failpoint("sqlite.checkpoint.inside", fail)
        with caplog.at_level(logging.WARNING):
            assert store.put_cell(UUID(int=1), "BASE", 1, {}).outcome == "stored"
        assert "no checkpoint just now" in caplog.text


WRITER = f"""
import sys
from pathlib import Path
from uuid import UUID
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError

store = Datastore.open_embedded(Path(sys.argv[1]), shards={SHARDS})
print("open", flush=True)
for line in sys.stdin:
    for number in map(int, line.split()):
        try:
            body = {{"x": "y" * 100, "n": number}}
            print(number, store.put_cell(UUID(int=number), "BASE", 1, body).outcome, flush=True)
        except CellfeedError as error:
            print(number, "failed" if error.definite else "unknown", flush=True)
    print("done", flush=True)
"""


def test_puts_on_a_full_disk_have_certainly_failed_and_none_is_there_afterwards() -> None:
    try:
        with small_disk(SMALL_DISK_BYTES) as disk:
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, str(disk)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert writer.stdin is not None
            assert writer.stdout is not None

            def put(numbers: range) -> dict[int, str]:
                assert writer.stdin is not None
                assert writer.stdout is not None
                writer.stdin.write(" ".join(map(str, numbers)) + "\n")
                writer.stdin.flush()
                return {
                    int(number): outcome
                    for number, outcome in (
                        line.split() for line in iter(writer.stdout.readline, "done\n")
                    )
                }

            assert writer.stdout.readline() == "open\n"
            outcomes = put(range(50))
            fill(disk)
            full = put(range(50, 120))
            make_room(disk)
            outcomes |= full | put(range(120, 150))
            writer.send_signal(signal.SIGKILL)
            writer.communicate(timeout=30)
            assert "failed" in set(full.values()), "the disk was not full"
            assert "unknown" not in full.values(), "a put without a commit is reported as failed"
            assert {outcomes[number] for number in (*range(50), *range(120, 150))} == {"stored"}
            with Datastore.open_embedded(disk, shards=SHARDS) as store:
                there = {
                    number
                    for number in outcomes
                    if store.get_cell(UUID(int=number), "BASE", 1) is not None
                }
            assert there == {number for number, outcome in outcomes.items() if outcome == "stored"}
    except NoSmallDisk as reason:
        pytest.skip(str(reason))
