"""The users, tokens and ACLs as a process has last read them: one value, which answers each
question of authentication and of rights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.limits import PRINCIPAL_BYTES_MAX
from cellfeed.store.security.rights import EVERYBODY, Acl, Kind, Operation, Rights
from cellfeed.store.security.scram import Credential, no_credential

CLOSED: Final = "security/closed"
"""In the state table since the first user, token or ACL."""


DENIALS: Final = "security/denials/"


class User(msgspec.Struct, frozen=True):
    name: str
    credentials: dict[str, Credential]


class AccessToken(msgspec.Struct, frozen=True):
    """A bearer token without its secret. ``expires_at_s``: seconds of Unix time; None: never."""

    id: str
    principal: str
    digest: bytes
    created_at_s: float
    expires_at_s: float | None

    def __repr__(self) -> str:
        return f"AccessToken(id={self.id!r}, principal={self.principal!r})"


class Security:
    """The users, tokens and ACLs that were last read: a value that is replaced as a whole.
    ``is_closed``: only operations that an ACL allows; so it is also where there are any of them.
    ``unreadable``: keys of entries that are not read, so they let nobody in and allow nothing."""

    def __init__(
        self,
        users: Mapping[str, User],
        acls: Collection[Acl],
        secret: bytes,
        *,
        tokens: Mapping[str, AccessToken] | None = None,
        is_closed: bool = False,
        unreadable: Collection[str] = (),
    ) -> None:
        self._users = users
        self.unreadable = frozenset(unreadable)
        # A denial that cannot be read may deny anything: so nothing is allowed.
        is_known = not any(key.startswith(DENIALS) for key in self.unreadable)
        self._rights = Rights(acls if is_known else ())
        self._secret = secret
        self.tokens = tokens or {}
        """By their ids."""
        self.is_open = not (is_closed or users or acls or self.tokens or unreadable)
        """Whether everything is allowed."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Security) and (
            self._users,
            self._rights.acls,
            self._secret,
            self.tokens,
            self.is_open,
            self.unreadable,
        ) == (
            other._users,
            other._rights.acls,
            other._secret,
            other.tokens,
            other.is_open,
            other.unreadable,
        )

    __hash__ = None  # type: ignore[assignment]

    def may(self, principal: str, kind: Kind, name: str, operation: Operation) -> bool:
        return self.is_open or self._rights.may(principal, kind, name, operation)

    def may_all(self, principal: str, datastore: str, operation: Operation) -> bool:
        """Whether the principal may do that with every cell of the datastore: it may with the
        datastore, and no column is denied."""
        return self.is_open or (
            self._rights.may(principal, "datastore", datastore, operation)
            and not self._rights.denies_any(principal, "column", operation)
        )

    def may_column(self, principal: str, datastore: str, column: str, operation: Operation) -> bool:
        """Whether the principal may do that with the cells of a column: by a right on the column,
        or on the datastore."""
        rights = self._rights
        return self.is_open or (
            (
                rights.allows(principal, "column", column, operation)
                or rights.allows(principal, "datastore", datastore, operation)
            )
            and not rights.denies(principal, "column", column, operation)
            and not rights.denies(principal, "datastore", datastore, operation)
        )

    def may_topic(
        self,
        principal: str,
        datastore: str,
        topic: str,
        operation: Operation,
        *,
        exists: bool,
        column: str | None,
    ) -> bool:
        """Whether the principal may do that with a topic: by a right on the topic, the datastore,
        or the ``column`` that the topic shows (None: all of them). Denied columns are in no
        topic that the principal may read."""
        rights = self._rights
        if self.is_open:
            return True
        if rights.denies(principal, "topic", topic, operation) or rights.denies(
            principal, "datastore", datastore, operation
        ):
            return False
        if rights.denies_any(principal, "column", operation) and (
            column is None or rights.denies(principal, "column", column, operation)
        ):
            return False
        return (
            rights.allows(principal, "topic", topic, operation)
            or rights.allows(principal, "datastore", datastore, operation)
            or (
                exists
                and column is not None
                and rights.allows(principal, "column", column, operation)
            )
        )

    def may_describe_some(self, principal: str, datastore: str) -> bool:
        """Whether the principal may describe the datastore, or some column or topic of it."""
        rights = self._rights
        return self.is_open or (
            not rights.denies(principal, "datastore", datastore, "describe")
            and (
                rights.allows(principal, "datastore", datastore, "describe")
                or rights.allows_any(principal, "column", "describe")
                or rights.allows_any(principal, "topic", "describe")
            )
        )

    def sees_group(self, principal: str, datastore: str, group: str) -> bool:
        """Whether the principal may know how far a group is: by a right on the group, or on the
        datastore."""
        rights = self._rights
        return self.is_open or (
            (
                rights.allows(principal, "group", group, "describe")
                or rights.allows(principal, "datastore", datastore, "describe")
            )
            and not rights.denies(principal, "group", group, "describe")
            and not rights.denies(principal, "datastore", datastore, "describe")
        )

    def covers(self, principal: str, other: str) -> bool:
        """Whether ``principal`` may do everything that ``other`` may: each ACL that allows
        something to ``other`` lies within one of ``principal``, whom no ACL of its own denies
        anything."""
        if self.is_open or principal == other:
            return True
        if any(acl.effect != "allow" for acl in self._rights.of(principal)):
            return False
        return all(
            acl.effect != "allow"
            or self._rights.allows(principal, acl.kind, acl.pattern, acl.operation)
            for acl in self._rights.of(other)
        )

    def acls_of(self, principal: str) -> list[Acl]:
        return self._rights.of(principal)

    def exists(self, user: str) -> bool:
        return user in self._users

    def credential(self, mechanism: str, user: str) -> Credential:
        """The user's, or one that no password fits."""
        found = self._users.get(user)
        return (
            found.credentials[mechanism]
            if found is not None and mechanism in found.credentials
            else no_credential(mechanism, user, self._secret)
        )


def check_principal(name: str, *, everybody: bool = False) -> None:
    """Raises InvalidRequest for a name that nobody can have. ``everybody``: ``*`` is one, too."""
    if name == EVERYBODY and not everybody:
        raise InvalidRequest("user '*': that is everybody, and no name of one")
    if not name or not name.isprintable() or len(name.encode()) > PRINCIPAL_BYTES_MAX:
        raise InvalidRequest(
            f"user {name!r}: a name has 1 to {PRINCIPAL_BYTES_MAX} bytes that can be printed"
        )
