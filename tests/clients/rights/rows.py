"""A row of the matrix of rights, and the judgement of an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.clients.rights.principals import DESCRIBE_TOPIC, Principal, Right

ROW_KEY = "00000000-0000-4000-8000-000000000000"


COMMITTED = 1


ALLOWED = "allowed"


NO_TOPIC_RIGHT, NO_GROUP_RIGHT = "topic_authorization_failed", "group_authorization_failed"


@dataclass(frozen=True)
class Row:
    """One way to ask an API. ``needs``: the rights in the order in which they are asked for, each
    with the answer without it; ``told`` classifies an answer: ``ALLOWED`` only when it has the data
    asked for. ``versions``: all of the API's where it says nothing else. ``changes``: it takes
    committed offsets away or changes them when it is allowed, and leaves them when not."""

    about: str
    ask: Callable[[int], dict[str, Any]]
    told: Callable[[Any, Principal], str]
    needs: tuple[tuple[Right, str], ...] = ()
    versions: tuple[int, int] = (0, 99)
    changes: bool = False
    without: str = ALLOWED
    """The answer to everybody where no right is asked for."""

    def expected(self, principal: Principal) -> str:
        return next(
            (answer for right, answer in self.needs if not principal.has(right)), self.without
        )


def only_name(found: list[str], wanted: str, principal: Principal) -> str:
    left = sorted(set(found) - principal.beside)
    return ALLOWED if left == [wanted] else "nothing" if not left else f"shown: {left}"


def name_of_error(error: Any, allowed: str = "none") -> str:
    return ALLOWED if error.name == allowed else str(error.name)


def partitions_of(answer: Any) -> list[Any]:
    return [
        each
        for topic in getattr(answer, "topics", None) or answer.responses
        for each in getattr(topic, "partitions", None) or topic.partition_responses
    ]


def one_partition(answer: Any, allowed: Callable[[Any], bool] = lambda _: True) -> str:
    """Of an answer for one partition."""
    [each] = partitions_of(answer)
    assert each.error_code.name != "none" or allowed(each), each
    return name_of_error(each.error_code)


SHARD = 0


TOPIC_IDS: dict[str, Any] = {}
"""Filled by the gateway."""


LIST_TOPICS: Final = ((DESCRIBE_TOPIC, "nothing"),)


ONE_PARTITION: Final = {"partition_index": SHARD}


NO_OPERATIONS: Final = dict.fromkeys(
    (
        "include_topic_authorized_operations",
        "include_cluster_authorized_operations",
        "include_authorized_operations",
    ),
    False,
)


def refused_rows(values: dict[str, Any], error: Callable[[Any], Any], always: str) -> list[Row]:
    """Requests that nobody may make here, with any rights."""
    return [
        Row(
            "refused",
            lambda _: values,
            lambda answer, _: name_of_error(error(answer)),
            without=always,
        )
    ]
