"""ACLs, and the look-up of one right among many thousands."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Final, Literal

import msgspec

Kind = Literal["topic", "group"]
Operation = Literal["read", "describe", "delete"]
DESCRIBE: Final = "describe"
"""Each other operation allows it, too."""


class Acl(msgspec.Struct, frozen=True):
    """``pattern`` is a name, or a prefix with ``*`` at its end."""

    principal: str
    kind: str
    pattern: str
    operation: str


class _Rules:
    """By principal, kind, name or prefix, and operation; and by principal and kind the lengths of
    the prefixes."""

    def __init__(self, acls: Collection[Acl]) -> None:
        self.names: set[tuple[str, str, str, str]] = set()
        self.prefixes: set[tuple[str, str, str, str]] = set()
        self.lengths: dict[tuple[str, str], set[int]] = {}
        for acl in acls:
            known = self.names
            if acl.pattern.endswith("*"):
                known = self.prefixes
                lengths = self.lengths.setdefault((acl.principal, acl.kind), set())
                lengths.add(len(acl.pattern) - 1)
            known.update(
                (acl.principal, acl.kind, acl.pattern.removesuffix("*"), operation)
                for operation in (acl.operation, DESCRIBE)
            )


class Rights:
    """The rights that ACLs give. A look-up takes one step for each length that a prefix of the
    principal has, however many ACLs there are."""

    def __init__(self, acls: Collection[Acl]) -> None:
        self.acls = frozenset(acls)

    @cached_property
    def _rules(self) -> _Rules:
        # With the first look-up: a gateway reads all ACLs every second, and mostly finds no change.
        return _Rules(self.acls)

    def may(self, principal: str, kind: str, name: str, operation: str) -> bool:
        """Whether an ACL allows it."""
        return (principal, kind, name, operation) in self._rules.names or any(
            (principal, kind, name[:length], operation) in self._rules.prefixes
            for length in self._rules.lengths.get((principal, kind), ())
            if length <= len(name)
        )

    def of(self, principal: str) -> list[Acl]:
        """The principal's ACLs."""
        return [acl for acl in self.acls if acl.principal == principal]
