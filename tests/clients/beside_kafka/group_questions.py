"""The questions about consumer groups and their offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from tests.clients.beside_kafka.answers import only_named
from tests.clients.beside_kafka.api_keys import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC,
)
from tests.clients.beside_kafka.requests import (
    commit_topic,
    join_request,
    offset_delete_request,
    offset_fetch_request,
    simple_member,
)
from tests.clients.beside_kafka.side import NOBODY, TOPIC, Side
from tests.support.trips_log import SHARDS


def questions_of_nobodys_group(ask_for: Any) -> Iterator[tuple[str, int, Any]]:
    nobody = {
        "group_id": "nobodys",
        "member_id": NOBODY,
        "group_instance_id": None,
        "generation_id": 3,
        "generation_id_or_member_epoch": 3,
    }
    for label, key_type, key in (
        ("group", 0, "any"),
        ("transaction", 1, "any"),
        ("empty", 0, ""),
        ("unknown kind", 7, "any"),
    ):
        yield ask_for(label, FIND_COORDINATOR, key_type=key_type, key=key, coordinator_keys=[key])
    yield ask_for("unknown member", JOIN, **{**join_request("wanted"), "member_id": NOBODY})
    yield ask_for("no group", JOIN, **join_request(""))
    yield ask_for("short session", JOIN, **{**join_request("wanted"), "session_timeout": 1})
    yield ask_for("long session", JOIN, **{**join_request("wanted"), "session_timeout": 1 << 30})
    yield ask_for("nothing to vote for", JOIN, **{**join_request("wanted"), "protocols": []})
    yield ask_for("unknown", HEARTBEAT, **nobody)
    yield ask_for(
        "unknown", SYNC, **nobody, protocol_type="consumer", protocol_name="range", assignments=[]
    )
    yield ask_for(
        "without a protocol", SYNC, **nobody, protocol_type=None, protocol_name=None, assignments=[]
    )
    yield ask_for(
        "unknown",
        LEAVE,
        **nobody,
        members=[{"member_id": NOBODY, "group_instance_id": None, "reason": None}],
    )
    yield ask_for(
        "unknown", OFFSET_COMMIT, **nobody, retention_time=-1, topics=[commit_topic(0, 5)]
    )
    unnamed = {**nobody, "group_id": ""}
    yield ask_for("unnamed", HEARTBEAT, **unnamed)
    yield ask_for(
        "unnamed", SYNC, **unnamed, protocol_type="consumer", protocol_name="range", assignments=[]
    )
    yield ask_for(
        "unnamed",
        LEAVE,
        **unnamed,
        members=[{"member_id": NOBODY, "group_instance_id": None, "reason": None}],
    )
    yield ask_for("unnamed", DESCRIBE_GROUPS, groups=[""], include_authorized_operations=False)
    yield ask_for("unnamed", OFFSET_FETCH, **offset_fetch_request("", [0]))
    yield ask_for(
        "unnamed", OFFSET_COMMIT, **unnamed, retention_time=-1, topics=[commit_topic(0, 5)]
    )
    yield ask_for(
        "unknown", DESCRIBE_GROUPS, groups=["nobodys"], include_authorized_operations=False
    )
    yield ask_for("unknown", DELETE_GROUPS, groups_names=["nobodys"])
    yield ask_for("unnamed", DELETE_GROUPS, groups_names=[""])
    yield ask_for("unknown", OFFSET_DELETE, **offset_delete_request("nobodys", [0]))
    yield ask_for(
        "unknown group and partition", OFFSET_DELETE, **offset_delete_request("nobodys", [SHARDS])
    )
    yield ask_for("nothing of an unknown group", OFFSET_DELETE, group_id="nobodys", topics=[])
    yield ask_for("unnamed", OFFSET_DELETE, **offset_delete_request("", [0]))
    yield ask_for("unknown", OFFSET_FETCH, **offset_fetch_request("nobodys", [0, 1]))
    yield ask_for("unknown, all", OFFSET_FETCH, **offset_fetch_request("nobodys", None))


def questions_of_a_group(side: Side, ask_for: Any, group: str) -> Iterator[tuple[str, int, Any]]:
    """The life of a group of one member; the label ends in where it is."""
    joined = ask_for("first", JOIN, **join_request(group))
    yield joined
    if joined[2].get("error_code") == "member_id_required":
        joined = ask_for(
            "with its id",
            JOIN,
            **{**join_request(group), "member_id": side.member(joined[2]["member_id"])},
        )
        yield joined
    member = {
        "group_id": group,
        "member_id": side.member(joined[2]["member_id"]),
        "group_instance_id": None,
        "generation_id": side.generation,
        "generation_id_or_member_epoch": side.generation,
    }
    stale = {**member, "generation_id": 70, "generation_id_or_member_epoch": 70}
    sync = {
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member["member_id"], "assignment": b"mine"}],
    }
    yield ask_for("before the sync", HEARTBEAT, **member)
    yield ask_for(
        "before the sync", OFFSET_COMMIT, **member, retention_time=-1, topics=[commit_topic(0, 5)]
    )
    yield ask_for("stale", SYNC, **stale, **sync)
    yield ask_for("another protocol", SYNC, **member, **{**sync, "protocol_name": "other"})
    yield ask_for("leader", SYNC, **member, **sync)
    yield ask_for("again", SYNC, **member, **{**sync, "assignments": []})
    yield ask_for("stable", HEARTBEAT, **member)
    yield ask_for("stale", HEARTBEAT, **stale)
    yield ask_for("another member", HEARTBEAT, **{**member, "member_id": NOBODY})
    yield ask_for(
        "stable",
        OFFSET_COMMIT,
        **member,
        retention_time=-1,
        topics=[commit_topic(0, 5), commit_topic(1, 6, metadata="why")],
    )
    yield ask_for("stale", OFFSET_COMMIT, **stale, retention_time=-1, topics=[commit_topic(0, 5)])
    yield ask_for(
        "another member",
        OFFSET_COMMIT,
        **{**member, "member_id": NOBODY},
        retention_time=-1,
        topics=[commit_topic(0, 5)],
    )
    yield ask_for(
        "nobody while it has members",
        OFFSET_COMMIT,
        **simple_member(group),
        retention_time=-1,
        topics=[commit_topic(0, 5)],
    )
    yield ask_for(
        "unknown partition",
        OFFSET_COMMIT,
        **member,
        retention_time=-1,
        topics=[commit_topic(SHARDS, 5)],
    )
    yield ask_for(
        "unknown topic",
        OFFSET_COMMIT,
        **member,
        retention_time=-1,
        topics=[commit_topic(0, 5, topic="nobodys")],
    )
    yield ask_for(
        "long metadata",
        OFFSET_COMMIT,
        **member,
        retention_time=-1,
        topics=[commit_topic(0, 5, metadata="x" * 5000)],
    )
    yield ask_for("its own", OFFSET_FETCH, **offset_fetch_request(group, [0, 1, 2]))
    yield ask_for("its own, all", OFFSET_FETCH, **offset_fetch_request(group, None))
    yield ask_for("stable", DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False)
    yield only_named(
        group, "groups", ask_for("stable", LIST_GROUPS, states_filter=["Stable"], types_filter=[])
    )
    yield only_named(
        group,
        "groups",
        ask_for("of another state", LIST_GROUPS, states_filter=["Empty"], types_filter=[]),
    )
    yield ask_for("with members", DELETE_GROUPS, groups_names=[group])
    yield ask_for(
        "of members that read who knows what", OFFSET_DELETE, **offset_delete_request(group, [0])
    )
    yield ask_for("other protocols", JOIN, **{**join_request(group), "protocol_type": "connect"})
    leaving = {
        **member,
        "members": [
            {"member_id": member["member_id"], "group_instance_id": None, "reason": "done"}
        ],
    }
    yield ask_for("well", LEAVE, **leaving)
    yield ask_for("twice", LEAVE, **leaving)
    yield ask_for("gone", HEARTBEAT, **member)
    yield ask_for("gone", DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False)
    yield only_named(
        group, "groups", ask_for("gone", LIST_GROUPS, states_filter=[], types_filter=[])
    )
    yield ask_for("of the gone", OFFSET_FETCH, **offset_fetch_request(group, [0]))
    yield ask_for("gone", DELETE_GROUPS, groups_names=[group])
    yield ask_for("deleted", OFFSET_FETCH, **offset_fetch_request(group, [0]))


def questions_of_a_simple_consumer(ask_for: Any, group: str) -> Iterator[tuple[str, int, Any]]:
    yield ask_for(
        "simple",
        OFFSET_COMMIT,
        **simple_member(group),
        retention_time=-1,
        topics=[commit_topic(0, 7), commit_topic(2, 0)],
    )
    yield ask_for("simple", OFFSET_FETCH, **offset_fetch_request(group, [0, 1, 2]))
    yield ask_for("simple", DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False)
    yield only_named(
        group, "groups", ask_for("simple", LIST_GROUPS, states_filter=[], types_filter=[])
    )
    yield ask_for("one of two", OFFSET_DELETE, **offset_delete_request(group, [2]))
    yield ask_for("never committed", OFFSET_DELETE, **offset_delete_request(group, [1]))
    yield ask_for("unknown partition", OFFSET_DELETE, **offset_delete_request(group, [SHARDS]))
    yield ask_for(
        "unknown topic", OFFSET_DELETE, **offset_delete_request(group, [0], topic="nobodys")
    )
    yield ask_for("some unknown", OFFSET_DELETE, **offset_delete_request(group, [2, SHARDS]))
    yield ask_for("one deleted", OFFSET_FETCH, **offset_fetch_request(group, [0, 1, 2]))
    yield ask_for("simple", DELETE_GROUPS, groups_names=[group])
    yield ask_for("deleted", OFFSET_DELETE, **offset_delete_request(group, [0]))


def questions_of_subscribed_groups(
    side: Side, ask_for: Any, group: str
) -> Iterator[tuple[str, int, Any]]:
    """Offsets of groups with a member: one that reads the topic, one that reads another, and one
    that is not of consumers."""
    kinds = (
        ("its own topic", "consumer", TOPIC),
        ("another topic", "consumer", "nobodys"),
        ("connect", "connect", TOPIC),
    )
    for number, (label, protocol_type, topic) in enumerate(kinds):
        name = f"{group}-{number}"
        subscription = (
            struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + struct.pack(">i", -1)
        )
        join = {
            **join_request(name),
            "protocol_type": protocol_type,
            "protocols": [{"name": "range", "metadata": subscription}],
        }
        joined = ask_for(label, JOIN, **join)
        yield joined
        if joined[2].get("error_code") == "member_id_required":
            joined = ask_for(
                label, JOIN, **{**join, "member_id": side.member(joined[2]["member_id"])}
            )
            yield joined
        member_id = side.member(joined[2]["member_id"])
        member = {
            "group_id": name,
            "member_id": member_id,
            "group_instance_id": None,
            "generation_id": side.generation,
            "generation_id_or_member_epoch": side.generation,
        }
        yield ask_for(
            f"{label}, before the sync", OFFSET_DELETE, **offset_delete_request(name, [0])
        )
        sync = {
            "protocol_type": protocol_type,
            "protocol_name": "range",
            "assignments": [{"member_id": member_id, "assignment": b"mine"}],
        }
        yield ask_for(label, SYNC, **member, **sync)
        yield ask_for(
            label, OFFSET_COMMIT, **member, retention_time=-1, topics=[commit_topic(0, 5)]
        )
        yield ask_for(label, OFFSET_DELETE, **offset_delete_request(name, [0]))
        yield ask_for(
            f"{label}, and an unknown one",
            OFFSET_DELETE,
            **offset_delete_request(name, [0, SHARDS]),
        )
        yield ask_for(label, OFFSET_FETCH, **offset_fetch_request(name, [0]))
        yield ask_for(
            label,
            LEAVE,
            **member,
            members=[{"member_id": member_id, "group_instance_id": None, "reason": "done"}],
        )
        yield ask_for(f"{label}, gone", OFFSET_DELETE, **offset_delete_request(name, [0]))
