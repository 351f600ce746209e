"""A block that is read is the one that the store would give, after any event of the files, the
process and the store."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.topics.topics import Topic, make_topic
from tests.support.block_logs import ALL, LARGE, Log, encoded, opened, paths, settle

RARE = make_topic("trips.RARE", View("RARE"), JsonFormat())

TOPICS = [ALL, RARE]


def kill(files: BlockFiles) -> None:
    """A task that waits is never done; the folder is free."""
    with files._work._news:
        files._work._work.clear()
    files.close()


class AnyOrder(RuleBasedStateMachine):
    """Puts, reads, kills, damage, erasing, trims, restores in any order."""

    @initialize(bytes_max=st.sampled_from([0, 2_000, 8_000, LARGE]))
    def begin(self, bytes_max: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="block-files-"))
        self.bytes_max = bytes_max
        self.log = Log()
        self.files = opened(self.directory, self.log, bytes_max)

    def teardown(self) -> None:
        self.files.close()
        shutil.rmtree(self.directory)

    def start_again(self) -> None:
        self.files = opened(self.directory, self.log, self.bytes_max)
        for (
            added_id,
            known,
        ) in self.log.erased:  # as every reporter of erasures does at a start
            self.files.forget(0, added_id, added_id + 1, known)
        self.files.trim(0, self.log.log_start)

    @rule(count=st.integers(1, 12))
    def put(self, count: int) -> None:
        self.log.put(count)

    @rule(topic=st.sampled_from(TOPICS), first=st.integers(0, 9))
    def keep(self, topic: Topic, first: int) -> None:
        start, end = max(4 * first, self.log.log_start), 4 * first + 4
        if start < end <= self.log.watermark:
            self.files.keep(
                self.files.key(topic, 0, start, end),
                encoded(self.log, topic, start, end),
                self.log.watermark,
                0,
            )

    @rule(topic=st.sampled_from(TOPICS))
    def keep_and_read_all(self, topic: Topic) -> None:
        for first in range(10):
            self.keep(topic, first)
        settle(self.files)
        self.all_that_is_read_is_what_the_store_has()

    @rule()
    def wait(self) -> None:
        settle(self.files)

    @rule()
    def restart(self) -> None:
        self.files.close()
        self.start_again()

    @rule()
    def kill(self) -> None:
        kill(self.files)
        self.start_again()

    @rule(
        which=st.integers(0, 99),
        other=st.integers(0, 99),
        kind=st.sampled_from(["bit", "cut", "zeros", "other", "longer", "torn write"]),
        share=st.floats(0, 1, exclude_max=True),
        bit=st.integers(0, 7),
    )
    def damage(self, which: int, other: int, kind: str, share: float, bit: int) -> None:
        # The draws must not depend on the files: which of them are there is a matter of threads.
        settle(self.files)
        there = paths(self.directory)
        if not there:
            return
        path = there[which % len(there)]
        content = bytearray(path.read_bytes())
        at = int(len(content) * share)
        match kind:
            case "bit" if content:
                content[at] ^= 1 << bit
            case "cut":
                del content[at:]
            case "zeros":
                content = bytearray(len(content))
            case "other":
                content = bytearray(there[other % len(there)].read_bytes())
            case "longer":
                content += b"\x00"
            case "torn write":
                path = path.with_suffix(".tmp")
        path.write_bytes(content)

    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        if self.log.watermark > self.log.log_start:
            self.log.erase(data.draw(st.integers(self.log.log_start, self.log.watermark - 1)))
            self.files.forget(
                0, self.log.erased[-1][0], self.log.erased[-1][0] + 1, self.log.erased[-1][1]
            )

    @rule(data=st.data(), first=st.integers(0, 9))
    def erase_while_it_is_encoded(self, data: st.DataObject, first: int) -> None:
        start, end, known = max(4 * first, self.log.log_start), 4 * first + 4, self.log.watermark
        if start < end <= known:
            block = encoded(self.log, ALL, start, end)
            self.log.erase(data.draw(st.integers(start, end - 1)))
            self.files.forget(
                0, self.log.erased[-1][0], self.log.erased[-1][0] + 1, self.log.erased[-1][1]
            )
            self.files.keep(self.files.key(ALL, 0, start, end), block, known, 0)

    @rule(data=st.data())
    def erase_while_nothing_runs(self, data: st.DataObject) -> None:
        if self.log.watermark > self.log.log_start:
            kill(self.files)
            self.log.erase(data.draw(st.integers(self.log.log_start, self.log.watermark - 1)))
            self.start_again()

    @rule(share=st.floats(0, 1), count=st.integers(0, 30))
    def restore(self, share: float, count: int) -> None:
        """The store returns as it was some time ago (at 0: it is made again), and continues."""
        self.files.close()
        self.log.restored(int(self.log.watermark * share))
        self.log.put(count)
        self.start_again()

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        self.log.log_start = max(self.log.log_start, int(self.log.watermark * share))
        self.files.trim(0, self.log.log_start)

    @invariant()
    def all_that_is_read_is_what_the_store_has(self) -> None:
        for topic in TOPICS if hasattr(self, "files") else []:
            for first in range(10):
                start, end = max(4 * first, self.log.log_start), 4 * first + 4
                if start < end <= self.log.watermark:
                    block = self.files.read(self.files.key(topic, 0, start, end), 0)
                    assert block is None or block == encoded(self.log, topic, start, end)

    @invariant()
    def the_budget_is_kept(self) -> None:
        if hasattr(self, "files"):
            assert self.files.kept_bytes <= max(self.bytes_max, 0)


TestAnyOrder = AnyOrder.TestCase

TestAnyOrder.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
