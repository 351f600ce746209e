"""APIs that show a gateway's things to tools: which of them, to whom, and in Kafka's terms."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis import (
    api_03_metadata,
    api_29_describe_acls,
    api_32_describe_configs,
    api_35_describe_log_dirs,
    api_50_describe_user_scram_credentials,
    api_61_describe_producers,
    api_74_list_config_resources,
)
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.security.access import Security, User
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.scram import HASHES, make_credential
from tests.support.gateway_context import PEER, TOPIC, KnownHeads, errors_of

ME = PEER.principal
HIDDEN_ID = UUID(int=7)
NODE = SimpleNamespace(node_id=4, host="here", port=9092)


@pytest.fixture
def known() -> KnownHeads:
    found = KnownHeads({0: Head(0, 9, 9, 1, 0), 1: Head(0, 9, 9, 1, 0)})
    cluster = SimpleNamespace(
        brokers=lambda _listener: [NODE],
        address=lambda *_: ("here", 9092),
        node_id=4,
        controller_id=4,
        leaders=[4, 5],
    )
    cluster.gateways = cluster
    found.context.cluster = cast("Any", cluster)
    topic = found.context.topics.named(TOPIC)
    assert topic is not None
    found.context.topics = cast(
        "Any",
        SimpleNamespace(
            named=found.context.topics.named,
            datastore=TOPIC,
            identified=lambda asked: topic if asked == HIDDEN_ID else None,
            refresh=lambda: None,
            all=lambda: [topic],
        ),
    )
    return found


def allow(known: KnownHeads, *acls: tuple[str, str, str], others: tuple[str, ...] = ()) -> None:
    """Gives the asking user these rights alone: kind, pattern, operation."""
    users = {
        name: User(name, {each: make_credential(each, "p", b"s" * 16, 4_096) for each in HASHES})
        for name in (ME, *others)
    }
    known.context.security = Security(users, frozenset(Acl(ME, *each) for each in acls), b"s")


# --- Metadata -------------------------------------------------------------------------------------


def metadata(
    known: KnownHeads, monkeypatch: pytest.MonkeyPatch, version: int, topics: Any
) -> list[tuple[str | None, ErrorCode]]:
    shown: list[Mapping[str, Any]] = []
    known.context.metadata_partitions = cast("Any", SimpleNamespace(of=lambda *_: []))
    known.context.heads = cast("Any", SimpleNamespace(epoch_changes=0))

    def write(_head: object, _answer: object, found: Any) -> bytes:
        shown.extend(topic for topic, _ in found)
        return b""

    monkeypatch.setattr(api_03_metadata, "write_metadata", write)
    known.ask(api_03_metadata, version, topics=topics)
    return [(each["name"], each["error_code"]) for each in shown]


@pytest.mark.parametrize(
    ("version", "topics", "names"),
    [(0, [], [TOPIC]), (1, [], []), (1, None, [TOPIC]), (12, [], [])],
)
def test_a_null_topic_list_means_all_topics_and_in_version_0_an_empty_one_does(
    known: KnownHeads,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    topics: list[Any] | None,
    names: list[str],
) -> None:
    assert [name for name, _ in metadata(known, monkeypatch, version, topics)] == names


def test_a_topic_by_its_id_is_unknown_to_a_user_without_the_right(
    known: KnownHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [SimpleNamespace(name=None, topic_id=HIDDEN_ID)]
    assert metadata(known, monkeypatch, 12, asked) == [(TOPIC, ErrorCode.none)]
    allow(known, ("topic", "other", "read"))
    assert metadata(known, monkeypatch, 12, asked) == [(None, ErrorCode.unknown_topic_id)]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nothing", ErrorCode.unknown_topic_or_partition),
        ("nothing@latest", ErrorCode.unknown_topic_or_partition),
        ("a b", ErrorCode.invalid_topic_exception),
    ],
)
def test_a_topic_that_is_not_there_is_unknown_or_illegal(
    known: KnownHeads, monkeypatch: pytest.MonkeyPatch, name: str, error: ErrorCode
) -> None:
    asked = [SimpleNamespace(name=name, topic_id=None)]
    assert metadata(known, monkeypatch, 12, asked) == [(name, error)]


# --- DescribeAcls, DescribeUserScramCredentials ---------------------------------------------------


@pytest.mark.parametrize(
    ("pattern_type", "name", "found"),
    [
        (2, "trips.BASE", ["*", "trips"]),
        (2, "tri", ["*"]),
        (2, None, ["*", "rides", "trips"]),
        (2, "rides", ["*", "rides"]),
        (3, "trips", []),
        (3, "rides", ["rides"]),
        (4, "trips", ["trips"]),
        (1, None, ["*", "rides", "trips"]),
    ],
)
def test_a_right_matches_a_name_by_its_pattern(
    known: KnownHeads, pattern_type: int, name: str | None, found: list[str]
) -> None:
    allow(known, *(("topic", each, "read") for each in ("trips*", "rides", "*")))
    answer = known.ask(
        api_29_describe_acls,
        3,
        resource_type_filter=2,
        resource_name_filter=name,
        pattern_type_filter=pattern_type,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    assert [each["resource_name"] for each in answer["resources"]] == found


def test_a_user_sees_only_its_own_credentials(known: KnownHeads) -> None:
    allow(known, others=("other",))
    asked = [SimpleNamespace(name=name) for name in (ME, "other", "nobody")]
    answer = known.ask(api_50_describe_user_scram_credentials, users=asked)
    errors = {each["user"]: each["error_code"] for each in answer["results"]}
    assert errors == {
        ME: ErrorCode.none,
        "other": ErrorCode.resource_not_found,
        "nobody": ErrorCode.resource_not_found,
    }
    all_of_them = known.ask(api_50_describe_user_scram_credentials, users=None)
    assert [each["user"] for each in all_of_them["results"]] == [ME]


# --- DescribeConfigs, ListConfigResources, DescribeProducers --------------------------------------


def configs(known: KnownHeads, kind: int, name: str) -> dict[str, dict[str, Any]]:
    resource = SimpleNamespace(resource_type=kind, resource_name=name, configuration_keys=None)
    [result] = known.ask(api_32_describe_configs, 4, resources=[resource])["results"]
    assert result["error_code"] is ErrorCode.none
    return {each["name"]: each for each in result["configs"]}


def test_the_settings_of_latest_show_that_it_is_compacted(
    known: KnownHeads,
) -> None:
    assert configs(known, 2, TOPIC)["cleanup.policy"]["value"] == "delete"
    topic: Any = known.context.topics.named(TOPIC)
    topic.latest = True
    assert configs(known, 2, TOPIC)["cleanup.policy"]["value"] == "compact"


def test_a_mirror_carries_over_the_settings_of_a_topic_that_differ_from_kafkas(
    known: KnownHeads,
) -> None:
    found = configs(known, 2, TOPIC)
    assert found["retention.ms"]["value"] == "-1"
    assert not any(each["read_only"] for each in found.values())
    assert [name for name, each in found.items() if each["config_source"] == 1] == ["retention.ms"]
    assert all(each["read_only"] for each in configs(known, 4, "4").values())


@pytest.mark.parametrize(
    ("version", "asked", "found"),
    [(1, [], [(2, TOPIC), (4, "4")]), (1, [4], [(4, "4")]), (1, [32], []), (0, [], [])],
)
def test_no_requested_kind_means_all_kinds(
    known: KnownHeads, version: int, asked: list[int], found: list[tuple[int, str]]
) -> None:
    answer = known.ask(api_74_list_config_resources, version, resource_types=asked)
    assert [
        (each["resource_type"], each["resource_name"]) for each in answer["config_resources"]
    ] == found


def test_producers_of_a_partition_are_for_its_readers(known: KnownHeads) -> None:
    def errors() -> list[ErrorCode]:
        asked = [SimpleNamespace(name=TOPIC, partition_indexes=[0])]
        return errors_of(known.ask(api_61_describe_producers, topics=asked))

    allow(known, ("topic", TOPIC, "describe"))
    assert errors() == [ErrorCode.topic_authorization_failed]
    allow(known, ("topic", TOPIC, "read"))
    assert errors() == [ErrorCode.none]


# --- DescribeLogDirs ------------------------------------------------------------------------------


def memory_dir(
    known: KnownHeads, monkeypatch: pytest.MonkeyPatch, asked: list[int] | None, used: int = 30
) -> dict[str, Any]:
    kept = SimpleNamespace(by_partition=lambda: {"c": {1: 30}}, bytes_max=100, bytes=used)
    known.context.blocks = cast("Any", SimpleNamespace(kept=kept, files=None))
    topic: Any = known.context.topics.named(TOPIC)
    topic.content = "c"
    answers: list[Any] = []

    def write(_head: object, answer: Any) -> bytes:
        answers.append(answer)
        return b""

    monkeypatch.setattr(api_35_describe_log_dirs, "write_response", write)
    wanted = None if asked is None else [SimpleNamespace(topic=TOPIC, partitions=asked)]
    known.ask(api_35_describe_log_dirs, 4, topics=wanted)
    [found] = answers[0]["results"]
    return dict(found)


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [(None, {0: 0, 1: 30}), ([1], {1: 30}), ([0], {0: 0}), ([7], {})],
)
def test_partitions_that_were_asked_for_are_listed_with_their_bytes(
    known: KnownHeads,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[int] | None,
    sizes: dict[int, int],
) -> None:
    found = memory_dir(known, monkeypatch, asked)["topics"]
    partitions = [each for topic in found for each in topic["partitions"]]
    assert {each["partition_index"]: each["partition_size"] for each in partitions} == sizes


@pytest.mark.parametrize(("used", "usable"), [(30, 70), (100, 0), (130, 0)])
def test_usable_bytes_are_the_rest_of_a_budget_and_never_below_0(
    known: KnownHeads, monkeypatch: pytest.MonkeyPatch, used: int, usable: int
) -> None:
    found = memory_dir(known, monkeypatch, None, used)
    assert (found["total_bytes"], found["usable_bytes"]) == (100, usable)
