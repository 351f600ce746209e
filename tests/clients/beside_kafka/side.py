"""One of the two sides, and its answers as plain values that can be compared."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from tests.support.raw_requests import decoded, encoded, exchange, head_bytes

CELLS = 200


TOPIC = "trips"


UNKNOWN_TOPIC_ID = UUID(int=77)


NOBODY = "nobody"


PLACES: Final = frozenset(
    (
        "host",
        "port",
        "node_id",
        "broker_id",
        "leader_id",
        "coordinator_id",
        "controller_id",
        "producer_id",
        "cluster_id",
        "client_host",
        "log_dir",
    )
)
"""Fields that name a process."""


SIZES: Final = frozenset(("partition_size", "total_bytes", "usable_bytes"))
"""Of a log and its disk at a broker, of kept blocks and the budget for them at a gateway."""


@dataclass
class Side:
    """One of the two. ``versions``: by API, those that it says it speaks. ``members``: the names
    for the ids that it gave to members of groups. ``generation``: of the group that was joined
    last."""

    port: int
    topic_id: UUID
    versions: dict[int, tuple[int, int]]
    members: dict[str, str] = field(default_factory=dict)
    generation: int = -1

    def ask(self, key: int, version: int, values: dict[str, Any]) -> Any:
        """The answer as dicts, lists and plain values; ``closed`` when the connection was closed
        instead."""
        frame = exchange(self.port, head_bytes(key, version) + encoded(key, version, values))
        return "closed" if frame is None else self._plain(decoded(key, version, frame))

    def member(self, name: str) -> str:
        """The id behind a name."""
        return next(member for member, known in self.members.items() if known == name)

    def _plain(self, value: Any, name: str = "") -> Any:
        if is_dataclass(value):
            return {
                each.name: self._plain(getattr(value, each.name), each.name)
                for each in fields(value)
            }
        if isinstance(value, tuple):
            return _in_order([self._plain(each, name) for each in value])
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, timedelta):
            return value // timedelta(milliseconds=1)
        if name in SIZES and value >= 0:
            return f"a {name}"
        if name in PLACES and value not in (-1, "", None):
            return f"a {name}"
        if name == "generation_id" and value >= 0:
            self.generation = value
            return "a generation"
        if isinstance(value, UUID):
            return "the topic's id" if value == self.topic_id else str(value)
        if name in ("member_id", "leader") and value not in ("", NOBODY):
            return self.members.setdefault(value, f"member {len(self.members) + 1}")
        return value


def _in_order(items: list[Any]) -> list[Any]:
    """Lists of topics and partitions have no order."""
    if not items or not isinstance(items[0], dict):
        return items
    if "partitions" in items[0] and (
        by := next((name for name in ("name", "topic") if name in items[0]), None)
    ):
        topics: dict[Any, dict[str, Any]] = {}
        for item in items:
            topics.setdefault(item[by], {**item, "partitions": []})["partitions"] += item[
                "partitions"
            ]
        items = [
            {**topic, "partitions": _in_order(topic["partitions"])} for topic in topics.values()
        ]
        return sorted(items, key=lambda item: str(item[by]))
    by = next(
        (name for name in ("partition_index", "partition", "api_key", "name") if name in items[0]),
        None,
    )
    return sorted(items, key=lambda item: item[by]) if by else items


def nearest_version(version: int, *ranges: tuple[int, int]) -> int:
    lowest, highest = max(each[0] for each in ranges), min(each[1] for each in ranges)
    return max(lowest, min(version, highest))


def differing_places(place: str, left: Any, right: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in left | right:
            yield from differing_places(f"{place}: {name}", left.get(name), right.get(name))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for one, other in zip(left, right, strict=True):
            yield from differing_places(place, one, other)
    elif left != right:
        yield place, (left, right)
