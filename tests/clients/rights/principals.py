"""Principals with every set of rights, and the names that they have rights on."""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

from cellfeed.store.security.rights import Acl

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


RIGHTS: Final = [READ_TOPIC, DESCRIBE_TOPIC, READ_GROUP, DESCRIBE_GROUP, DELETE_GROUP]


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
        *_by_other_kinds(beside),
    ]


def _by_other_kinds(beside: frozenset[str]) -> list[Principal]:
    """Rights on the datastore, a column and groups as HTTP has them, and denials."""

    def principal(name: str, *held: Right, beside: frozenset[str] = beside) -> Principal:
        return Principal(name, acls[name], frozenset(held), beside)

    acls = {
        "reads the datastore": (Acl("reads the datastore", "datastore", TOPIC, "read"),),
        "puts alone": (Acl("puts alone", "datastore", TOPIC, "put"),),
        "reads a column": (Acl("reads a column", "column", "BASE", "read"),),
        "operates a group": (Acl("operates a group", "group", GROUP, "operate"),),
        "is denied a column": (
            Acl("is denied a column", "datastore", TOPIC, "read"),
            Acl("is denied a column", "column", "NOTES", "read", "deny"),
        ),
        "is denied the datastore": (
            Acl("is denied the datastore", "topic", "*", "read"),
            Acl("is denied the datastore", "datastore", "*", "read", "deny"),
        ),
    }
    return [
        principal("reads the datastore", READ_TOPIC, DESCRIBE_TOPIC),
        principal("puts alone", DESCRIBE_TOPIC),
        principal("reads a column", beside=frozenset((OTHER_TOPIC,))),
        principal("operates a group", DESCRIBE_GROUP, DELETE_GROUP, beside=frozenset()),
        principal("is denied a column", DESCRIBE_TOPIC),
        principal("is denied the datastore", DESCRIBE_TOPIC),
    ]


PRINCIPALS: Final = _principals()
