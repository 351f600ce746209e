"""ACLs, and the look-up of one right among many thousands.

An ACL allows or denies one operation on a datastore, a column, a topic or a group. A denial
overrules every allowance. Each operation that is allowed allows ``describe``, too. The principal
``*`` is everybody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Final, Literal

import msgspec

Kind = Literal["topic", "group", "datastore", "column"]
Operation = Literal["read", "describe", "delete", "put", "erase", "operate"]
Effect = Literal["allow", "deny"]
DESCRIBE: Final = "describe"
"""Each other operation allows it, too."""

EVERYBODY: Final = "*"


class Acl(msgspec.Struct, frozen=True, omit_defaults=True):
    """``pattern`` is a name, or a prefix with ``*`` at its end. ``principal`` is a name, or ``*``
    for everybody."""

    principal: str
    kind: str
    pattern: str
    operation: str
    effect: Effect = "allow"


class _Rules:
    """By principal, kind, name or prefix, and operation; and by principal and kind the lengths of
    the prefixes."""

    def __init__(self, acls: Collection[Acl]) -> None:
        self.names: set[tuple[str, str, str, str]] = set()
        self.prefixes: set[tuple[str, str, str, str]] = set()
        self.lengths: dict[tuple[str, str], set[int]] = {}
        self.somewhere: set[tuple[str, str, str]] = set()
        """Operations on anything of a kind."""
        for acl in acls:
            known = self.names
            if acl.pattern.endswith("*"):
                known = self.prefixes
                lengths = self.lengths.setdefault((acl.principal, acl.kind), set())
                lengths.add(len(acl.pattern) - 1)
            for operation in _included(acl):
                known.add((acl.principal, acl.kind, acl.pattern.removesuffix("*"), operation))
                self.somewhere.add((acl.principal, acl.kind, operation))

    def cover(self, principal: str, kind: str, name: str, operation: str) -> bool:
        return (principal, kind, name, operation) in self.names or any(
            (principal, kind, name[:length], operation) in self.prefixes
            for length in self.lengths.get((principal, kind), ())
            if length <= len(name)
        )


def _included(acl: Acl) -> Iterator[str]:
    yield acl.operation
    if acl.effect == "allow":
        yield DESCRIBE
        if (acl.kind, acl.operation) == ("group", "operate"):
            yield "delete"


class Rights:
    """The rights that ACLs give. A look-up takes one step for each length that a prefix of the
    principal has, however many ACLs there are."""

    def __init__(self, acls: Collection[Acl]) -> None:
        self.acls = frozenset(acls)

    @cached_property
    def _allowed(self) -> _Rules:
        # With the first look-up: a server reads all ACLs every second, and mostly finds no change.
        return _Rules([acl for acl in self.acls if acl.effect == "allow"])

    @cached_property
    def _denied(self) -> _Rules:
        return _Rules([acl for acl in self.acls if acl.effect != "allow"])

    def may(self, principal: str, kind: str, name: str, operation: str) -> bool:
        """Whether an ACL allows it, and none denies it."""
        return self.allows(principal, kind, name, operation) and not self.denies(
            principal, kind, name, operation
        )

    def allows(self, principal: str, kind: str, name: str, operation: str) -> bool:
        """Whether an ACL allows it, also where another one denies it."""
        allowed = self._allowed
        return allowed.cover(principal, kind, name, operation) or allowed.cover(
            EVERYBODY, kind, name, operation
        )

    def denies(self, principal: str, kind: str, name: str, operation: str) -> bool:
        """Whether an ACL denies it."""
        denied = self._denied
        return denied.cover(principal, kind, name, operation) or denied.cover(
            EVERYBODY, kind, name, operation
        )

    def denies_any(self, principal: str, kind: str, operation: str) -> bool:
        """Whether an ACL denies the operation on anything of that kind."""
        found = self._denied.somewhere
        return (principal, kind, operation) in found or (EVERYBODY, kind, operation) in found

    def allows_any(self, principal: str, kind: str, operation: str) -> bool:
        """Whether an ACL allows the operation on anything of that kind."""
        found = self._allowed.somewhere
        return (principal, kind, operation) in found or (EVERYBODY, kind, operation) in found

    def of(self, principal: str) -> list[Acl]:
        """The principal's ACLs."""
        return [acl for acl in self.acls if acl.principal == principal]
