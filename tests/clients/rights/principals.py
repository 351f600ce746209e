"""Principals with every set of rights, and the names that they have rights on."""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

from cellfeed.store.security.rights import Acl
from cellfeed.store.security.users import OPERATIONS

TOPIC, OTHER_TOPIC, NO_TOPIC = "trips", "trips.BASE", "spirt"


GROUP, OTHER_GROUP, NO_GROUP = "payers", "others", "sreyap"
"""A group of the topic's name would have the topic's rights if kinds were mixed up; the last of
each are not there, and as long as the first."""


USER = "alice"


Right = tuple[str, str]
"""A kind and an operation, on ``TOPIC`` or ``GROUP``."""


READ_TOPIC, DESCRIBE_TOPIC = ("topic", "read"), ("topic", "describe")


READ_GROUP, DESCRIBE_GROUP, DELETE_GROUP = (
    ("group", "read"),
    ("group", "describe"),
    ("group", "delete"),
)


RIGHTS: Final = [
    (kind, operation) for kind, operations in OPERATIONS.items() for operation in operations
]


class Principal(NamedTuple):
    """``held``: the rights of its ACLs on ``TOPIC`` and ``GROUP``. ``beside``: other names that it
    may describe."""

    name: str
    acls: tuple[Acl, ...]
    held: frozenset[Right]
    beside: frozenset[str] = frozenset()

    def has(self, right: Right) -> bool:
        kind, operation = right
        return right in self.held or (
            operation == "describe" and any(each == kind for each, _ in self.held)
        )


def _principals() -> list[Principal]:
    found = []
    for count in range(len(RIGHTS) + 1):
        for held in itertools.combinations(RIGHTS, count):
            name = "may " + ", ".join(f"{operation} {kind}" for kind, operation in held)
            acls = tuple(
                Acl(name, kind, {"topic": TOPIC, "group": GROUP}[kind], operation)
                for kind, operation in held
            )
            found.append(Principal(name, acls, frozenset(held)))
    everything = frozenset(RIGHTS)

    def all_on(name: str, topics: str, groups: str) -> tuple[Acl, ...]:
        return tuple(
            Acl(name, kind, {"topic": topics, "group": groups}[kind], operation)
            for kind, operation in RIGHTS
        )

    beside = frozenset((OTHER_TOPIC, "trips.NOTES"))
    return [
        *found,
        Principal(
            "other names",
            all_on("other names", OTHER_TOPIC, OTHER_GROUP),
            frozenset(),
            frozenset((OTHER_TOPIC, OTHER_GROUP)),
        ),
        Principal("kinds mixed up", all_on("kinds mixed up", GROUP, TOPIC), frozenset()),
        Principal("a prefix", all_on("a prefix", "tri*", "pay*"), everything, beside),
        Principal(
            "a longer prefix", all_on("a longer prefix", "trips.*", "payers.*"), frozenset(), beside
        ),
        Principal(
            "a name that begins alike",
            all_on("a name that begins alike", "trip", "payer"),
            frozenset(),
        ),
    ]


PRINCIPALS: Final = _principals()
