"""The order of a loader's steps, with a consumer that gives the answers of the test: the table's
commit before the group's offset, nothing behind a record that cannot be loaded, nothing of a
partition that another member has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException

from cellfeed.consumers.warehouse import loader as module
from cellfeed.consumers.warehouse import recognition, record_reads, row_commits
from cellfeed.consumers.warehouse.loader import WarehouseLoader, run_warehouse_loader
from cellfeed.consumers.warehouse.loader_progress import FlushPolicy, LoaderProgress
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import WarehouseTable, make_table
from cellfeed.store.errors import ProtectData, Unavailable
from tests.support.scripted_consumer import (
    TOPIC,
    Record,
    ScriptedConsumer,
    Step,
    end_of,
    records,
)
from tests.support.warehouse_log import Log, feed

ONE, TWO = 1, 2
NEVER = FlushPolicy(10**6, 10**9, 10**6)
LOG = {shard: Log(range(20), shard=shard) for shard in (ONE, TWO)}


class Cluster:
    """Whom the loader reads from. ``answers``: the answers to the next questions; True after
    them."""

    def __init__(self) -> None:
        self.is_recognised = False
        self.answers: list[bool | Exception] = []
        self.asked = 0

    def recognise(self) -> bool:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        self.is_recognised = answer or self.is_recognised
        return answer

    def close(self) -> None:
        pass


class Loading:
    """A loader and its inputs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.consumer = ScriptedConsumer()
        self.cluster = Cluster()
        self.stop = threading.Event()
        self.loader: WarehouseLoader

    def run(
        self, *steps: Step, until: Mapping[int, int] | None = None, flush: FlushPolicy = NEVER
    ) -> LoaderProgress:
        """Loads until the steps are done, or ``until`` is reached."""
        self.consumer.steps = [*steps, self.stop.set]
        self.loader = WarehouseLoader("nowhere", TOPIC, "group", self.directory, flush=flush)
        self.loader._cluster = self.cluster  # type: ignore[assignment]
        return self.loader.run(self.stop, until_offsets=until)

    def assigned(
        self, *shards: int, then: list[Record] | None = None
    ) -> Callable[[], list[Record]]:
        def step() -> list[Record]:
            self.consumer.rebalance("on_assign", *shards)
            return then or []

        return step

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.consumer.calls if call[0] == name]

    def ids(self, shard: int) -> list[int]:
        return [row.added_id for row in WarehouseTable(self.directory).rows(shard)]


@pytest.fixture
def loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loading:
    made = Loading(tmp_path / "table")
    monkeypatch.setattr(module, "Consumer", made.consumer.made)
    monkeypatch.setattr(recognition, "Consumer", ScriptedConsumer().made)
    return made


def of(shard: int, begin: int, end: int) -> list[Record]:
    return records(shard, LOG[shard].records[begin:end])


def test_the_table_has_the_rows_before_the_group_has_the_offset(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    commit = loading.consumer.commit

    def looked_at(**how: Any) -> None:
        seen.append(WarehouseTable(loading.directory).next_offsets())
        commit(**how)

    monkeypatch.setattr(loading.consumer, "commit", looked_at)
    progress = loading.run(
        loading.assigned(ONE, TWO),
        of(ONE, 0, 5) + of(TWO, 0, 3),
        flush=FlushPolicy(5, 10**9, 10**6),
    )
    assert loading.called("commit") == [({ONE: 5}, False), ({TWO: 3}, False)]
    assert seen == [{ONE: 5}, {ONE: 5, TWO: 3}]
    assert (progress.rows, progress.files, progress.next_offsets) == (8, 2, {ONE: 5, TWO: 3})


def test_reading_begins_at_the_tables_end_and_not_at_the_groups_offset(loading: Loading) -> None:
    make_table(loading.directory, TOPIC)
    earlier = ShardLoader(loading.directory, TWO)
    feed(earlier, LOG[TWO], 4)
    earlier.flush()
    progress = loading.run(loading.assigned(ONE, TWO))
    assert loading.called("assign") == [({ONE: OFFSET_BEGINNING, TWO: 4},)]
    assert progress.next_offsets == {ONE: 0, TWO: 4}
    assert loading.consumer.config["enable.auto.commit"] is False
    assert loading.consumer.config["enable.auto.offset.store"] is False
    assert loading.consumer.config["auto.offset.reset"] == "error"
    assert loading.consumer.config["isolation.level"] == "read_committed"


def test_a_member_commits_a_revoked_partitions_rows_first_and_takes_no_more_of_it(
    loading: Loading,
) -> None:
    def revoked() -> list[Record]:
        loading.consumer.rebalance("on_revoke", ONE)
        assert loading.ids(ONE) == [0, 1, 2]
        return of(ONE, 3, 6)

    progress = loading.run(loading.assigned(ONE, TWO), of(ONE, 0, 3) + of(TWO, 0, 2), revoked)
    assert loading.ids(ONE) == [0, 1, 2]
    assert loading.ids(TWO) == [0, 1]
    assert progress.rows == 5


def test_rows_of_a_partition_that_was_taken_away_are_given_up(loading: Loading) -> None:
    def lost() -> None:
        loading.consumer.rebalance("on_lost", ONE)

    loading.run(loading.assigned(ONE), of(ONE, 0, 3), lost)
    assert loading.ids(ONE) == []
    assert loading.called("commit") == []


def test_no_record_behind_an_unloadable_one_of_its_partition_is_loaded(
    loading: Loading,
) -> None:
    progress = loading.run(
        loading.assigned(ONE, TWO),
        [*of(ONE, 0, 3), Record(ONE, 3, b"junk"), *of(ONE, 4, 6), *of(TWO, 0, 2)],
        [*of(ONE, 6, 9), *of(TWO, 2, 4)],
    )
    assert loading.ids(ONE) == [0, 1, 2]
    assert loading.ids(TWO) == [0, 1, 2, 3]
    assert list(progress.stopped) == [ONE]
    assert "does not decode" in progress.stopped[ONE]
    assert loading.called("pause") == [(ONE,)]


def test_a_partition_that_comes_again_is_tried_again(loading: Loading) -> None:
    progress = loading.run(
        loading.assigned(ONE),
        [Record(ONE, 0, b"junk")],
        loading.assigned(ONE),
        of(ONE, 0, 2),
    )
    assert progress.stopped == {}
    assert loading.ids(ONE) == [0, 1]


def test_a_loader_behind_a_faster_one_resumes_where_the_faster_one_ended(loading: Loading) -> None:
    def faster() -> list[Record]:
        other = ShardLoader(loading.directory, ONE)
        feed(other, LOG[ONE], 7)
        assert other.flush() is not None
        return of(ONE, 4, 5)

    loading.consumer.fails["seek"] = KafkaException(KafkaError(KafkaError._STATE))
    progress = loading.run(
        loading.assigned(ONE),
        of(ONE, 0, 4),
        faster,  # the fifth row makes a file, which comes too late
        of(ONE, 9, 12),  # the seek has failed: these are not the next ones
        of(ONE, 7, 9),
        flush=FlushPolicy(5, 10**9, 10**6),
    )
    assert progress.lost_races == 1
    assert loading.called("seek") == [(ONE, 7), (ONE, 7)]
    assert loading.ids(ONE) == list(range(9))


def test_a_batch_around_a_change_of_members_is_read_again_behind_the_last_taken_record(
    loading: Loading,
) -> None:
    """The batch may hold records from before and after it, of one partition even."""
    loading.run(
        loading.assigned(ONE),
        of(ONE, 0, 2),
        loading.assigned(TWO, then=[*of(ONE, 5, 7), *of(TWO, 5, 7)]),
        of(ONE, 2, 4) + of(TWO, 0, 2),
    )
    assert loading.called("seek") == [(ONE, 2), (TWO, OFFSET_BEGINNING)]
    assert loading.ids(ONE) == [0, 1, 2, 3]
    assert loading.ids(TWO) == [0, 1]


def test_no_row_is_committed_while_the_cluster_does_not_give_its_id(loading: Loading) -> None:
    loading.cluster.answers = [False, False]
    seen: list[list[int]] = []

    def look() -> None:
        seen.append(loading.ids(ONE))

    progress = loading.run(
        loading.assigned(ONE),  # it is asked at once, in vain
        of(ONE, 0, 3),  # and before a commit
        look,
        flush=FlushPolicy(3, 10**9, 10**6),
    )
    assert seen == [[]]
    assert loading.ids(ONE) == [0, 1, 2]
    assert progress.rows == 3


def test_rows_of_another_log_end_the_loader_and_none_is_kept(loading: Loading) -> None:
    loading.cluster.answers = [True, ProtectData("another log")]
    with pytest.raises(ProtectData, match="another log"):
        loading.run(loading.assigned(ONE), of(ONE, 0, 3), [])
    assert loading.ids(ONE) == []
    assert loading.called("commit") == []
    assert loading.called("close") == [()]


def test_the_cluster_is_asked_before_each_commit_and_after_each_change_of_members(
    loading: Loading,
) -> None:
    loading.run(
        loading.assigned(ONE),
        of(ONE, 0, 3),
        of(ONE, 3, 6),
        loading.assigned(TWO),
        flush=FlushPolicy(3, 10**9, 10**6),
    )
    assert loading.cluster.asked == 4


def test_an_offset_that_could_not_be_committed_keeps_no_row_back(loading: Loading) -> None:
    loading.consumer.fails["commit"] = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    progress = loading.run(
        loading.assigned(ONE),
        of(ONE, 0, 3),
        of(ONE, 3, 6),
        flush=FlushPolicy(3, 10**9, 10**6),
    )
    assert loading.ids(ONE) == list(range(6))
    assert loading.called("commit") == [({ONE: 3}, False), ({ONE: 6}, False)]
    assert progress.rows == 6


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_an_offset_that_the_log_no_longer_has_stops_its_partition(
    loading: Loading, code: int
) -> None:
    progress = loading.run(
        loading.assigned(ONE, TWO),
        of(ONE, 0, 3),
        [Record(ONE, 3, error=KafkaError(code)), *of(ONE, 8, 9), *of(TWO, 0, 1)],
    )
    assert "has no offset 3, where the table continues" in progress.stopped[ONE]
    assert (loading.ids(ONE), loading.ids(TWO)) == ([0, 1, 2], [0])


def test_a_client_that_gave_up_ends_the_loader_and_other_errors_do_not(loading: Loading) -> None:
    passing = Record(None, 0, error=KafkaError(KafkaError._TRANSPORT))
    assert loading.run(loading.assigned(ONE), [passing], of(ONE, 0, 2)).rows == 2
    loading.stop.clear()
    fatal = Record(None, 0, error=KafkaError(KafkaError._FATAL, "fenced", True))
    with pytest.raises(Unavailable, match="the Kafka client gave up"):
        loading.run(loading.assigned(ONE), [fatal])


@pytest.mark.parametrize(
    "flush", [FlushPolicy(3, 10**9, 10**6), FlushPolicy(10**6, 1_200, 10**6), FlushPolicy(age_s=0)]
)
def test_a_file_is_made_of_so_many_rows_or_bytes_or_of_rows_so_old(
    loading: Loading, flush: FlushPolicy
) -> None:
    progress = loading.run(loading.assigned(ONE), of(ONE, 0, 3), of(ONE, 3, 6), flush=flush)
    assert (progress.rows, progress.files) == (6, 2)


def test_when_memory_is_full_the_largest_shard_is_committed_first(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_commits, "WAITING_BYTES_MAX", 2_500)
    seen: list[tuple[list[int], list[int]]] = []

    def look() -> None:
        seen.append((loading.ids(ONE), loading.ids(TWO)))

    loading.run(loading.assigned(ONE, TWO), of(ONE, 0, 2) + of(TWO, 0, 5), look)
    assert seen == [([], [0, 1, 2, 3, 4])]


def test_a_loader_ends_once_all_partitions_are_at_their_ends(loading: Loading) -> None:
    """Behind the last record there may be offsets without one: the end of the partition counts."""
    never: Step = lambda: pytest.fail("it was at the end")  # noqa: E731
    progress = loading.run(
        loading.assigned(ONE, TWO),
        of(ONE, 0, 3) + of(TWO, 0, 2),
        [end_of(TWO, 4)],
        never,
        until={ONE: 3, TWO: 4, 9: 0},
    )
    assert progress.rows == 5
    assert loading.ids(ONE) == [0, 1, 2]


def test_a_partition_that_is_not_at_its_end_is_read_on(loading: Loading) -> None:
    progress = loading.run(
        loading.assigned(ONE), [*of(ONE, 0, 3), end_of(ONE, 3)], of(ONE, 3, 4), until={ONE: 4}
    )
    assert progress.rows == 4
    assert not loading.stop.is_set()


def test_partitions_of_other_members_count_as_done_when_the_table_has_their_ends(
    loading: Loading,
) -> None:
    three = 3

    def loaded_elsewhere(shard: int) -> Callable[[], None]:
        def step() -> None:
            elsewhere = ShardLoader(loading.directory, shard)
            feed(elsewhere, Log(range(20), shard=shard), 5)
            elsewhere.flush()

        return step

    progress = loading.run(
        loading.assigned(ONE),
        of(ONE, 0, 3),
        loaded_elsewhere(TWO),
        loaded_elsewhere(three),
        until={ONE: 3, TWO: 5, three: 5},
    )
    assert progress.rows == 3
    assert loading.ids(three) == [0, 1, 2, 3, 4]
    assert not loading.stop.is_set()


def test_a_loader_with_full_memory_and_a_silent_cluster_still_stops_on_request(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_commits, "WAITING_BYTES_MAX", 100)
    loading.cluster.answers = [False] * 20
    progress = loading.run(loading.assigned(ONE), of(ONE, 0, 5), [])
    assert (progress.rows, progress.waiting_rows) == (0, 0)
    assert loading.ids(ONE) == []


def test_progress_is_reported_after_each_batch_and_at_the_end(loading: Loading) -> None:
    seen: list[tuple[int, int]] = []
    loading.consumer.steps = [loading.assigned(ONE), of(ONE, 0, 3), loading.stop.set]
    loader = WarehouseLoader("nowhere", TOPIC, "group", loading.directory, flush=NEVER)
    loader._cluster = loading.cluster  # type: ignore[assignment]
    loader.run(loading.stop, lambda now: seen.append((now.rows, now.waiting_rows)))
    assert seen == [(0, 0), (0, 3), (0, 3), (3, 0)]


def test_client_settings_are_accepted_except_those_that_exactly_once_needs(
    loading: Loading,
) -> None:
    mine = {"client.id": "mine", "enable.auto.commit": True, "isolation.level": "read_uncommitted"}
    loading.stop.set()
    run_warehouse_loader(
        "nowhere", TOPIC, "group", loading.directory, loading.stop, consumer_config=mine
    )
    config = loading.consumer.config
    assert config["bootstrap.servers"] == "nowhere"
    assert config["group.id"] == "group"
    assert config["client.id"] == "mine"
    assert config["enable.auto.commit"] is False


def test_a_row_waits_no_longer_when_others_follow(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    for part in (record_reads, row_commits):
        monkeypatch.setattr(part, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    found: list[list[int]] = []

    def after_2_s(begin: int) -> Callable[[], list[Record]]:
        def step() -> list[Record]:
            found.append(loading.ids(ONE))
            clock[0] += 2
            return of(ONE, begin, begin + 1)

        return step

    loading.run(
        loading.assigned(ONE),
        *(after_2_s(number) for number in range(5)),
        flush=FlushPolicy(10**6, 10**9, 5.0),
    )
    assert found == [[], [], [], [], [0, 1, 2, 3]], "the first row has waited for six seconds"


def test_an_end_that_was_seen_before_an_assignment_does_not_count(loading: Loading) -> None:
    def away_and_back() -> list[Record]:
        loading.consumer.rebalance("on_revoke", ONE)
        loading.consumer.rebalance("on_assign", ONE)
        return []

    loading.run(
        loading.assigned(ONE, TWO),
        [*of(ONE, 0, 2), end_of(ONE, 9)],
        away_and_back,
        of(TWO, 0, 1),
        of(ONE, 2, 9),
        until={ONE: 9, TWO: 1},
    )
    assert loading.ids(ONE) == list(range(9))
