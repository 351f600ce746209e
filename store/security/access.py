"""The users and ACLs as a gateway has last read them: one value, which answers each question of
authentication and of rights."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from cellfeed.store.security.rights import Acl, Kind, Operation, Rights
from cellfeed.store.security.scram import Credential, no_credential


class User(msgspec.Struct, frozen=True):
    name: str
    credentials: dict[str, Credential]


class Security:
    """The users and ACLs that were last read: a value that is replaced as a whole. ``is_closed``:
    only operations that an ACL allows; so it is also where there are users or ACLs. ``unreadable``:
    keys of entries that are not read, so they let nobody in and allow nothing."""

    def __init__(
        self,
        users: Mapping[str, User],
        acls: Collection[Acl],
        secret: bytes,
        *,
        is_closed: bool = False,
        unreadable: Collection[str] = (),
    ) -> None:
        self._users = users
        self._rights = Rights(acls)
        self._secret = secret
        self.unreadable = frozenset(unreadable)
        self.is_open = not (is_closed or users or acls or unreadable)
        """Whether everything is allowed."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Security) and (
            self._users,
            self._rights.acls,
            self._secret,
            self.is_open,
            self.unreadable,
        ) == (other._users, other._rights.acls, other._secret, other.is_open, other.unreadable)

    __hash__ = None  # type: ignore[assignment]

    def may(self, principal: str, kind: Kind, name: str, operation: Operation) -> bool:
        return self.is_open or self._rights.may(principal, kind, name, operation)

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
