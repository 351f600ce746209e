"""Users of the gateways and their rights, in the state table; and one gateway's view of them.

    security/users/<digest of the name>     {"name", "credentials": {mechanism: {salt, iterations,
                                            stored_key, server_key}}}: never the password
    security/acls/<digest>                  {"principal", "kind", "pattern", "operation"}; a pattern
                                            that ends with * is a prefix
    security/secret                         random bytes: salts of unknown users

As long as there are neither users nor ACLs everything is allowed; with the first of either, only
operations that an ACL allows. The principal of a connection without authentication is
``ANONYMOUS``; of one with a client certificate and no SASL it is the subject (``CN=…,O=…``).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, Literal

import msgspec

from cellfeed.bridge.gateway.limits import PASSWORD_BYTES_MAX, PRINCIPAL_BYTES_MAX
from cellfeed.bridge.gateway.security.scram import (
    HASHES,
    SALT_BYTES,
    Credential,
    make_credential,
    no_credential,
)
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import InvalidRequest, NotFound

ANONYMOUS: Final = "ANONYMOUS"
Kind = Literal["topic", "group"]
Operation = Literal["read", "describe", "delete"]
OPERATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("read", "describe"),
    "group": ("read", "describe", "delete"),
}
"""Operations that may be allowed on each kind; read and delete allow describe, too."""

_USERS: Final = "security/users/"
_ACLS: Final = "security/acls/"
_SECRET: Final = "security/secret"  # noqa: S105 (a key of the state table)


class User(msgspec.Struct, frozen=True):
    name: str
    credentials: dict[str, Credential]


class Acl(msgspec.Struct, frozen=True):
    """``pattern`` is a name, or a prefix with ``*`` at its end."""

    principal: str
    kind: str
    pattern: str
    operation: str

    def covers(self, principal: str, kind: str, name: str, operation: str) -> bool:
        fits = (
            name.startswith(self.pattern[:-1])
            if self.pattern.endswith("*")
            else name == self.pattern
        )
        return (
            fits
            and self.principal == principal
            and self.kind == kind
            and (self.operation == operation or operation == "describe")
        )


_encode = msgspec.json.Encoder()
_decode_user = msgspec.json.Decoder(User)
_decode_acl = msgspec.json.Decoder(Acl)


class Security:
    """The users and ACLs that were last read: a value that is replaced as a whole."""

    def __init__(self, users: Mapping[str, User], acls: frozenset[Acl], secret: bytes) -> None:
        self._users = users
        self._acls = acls
        self._secret = secret

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Security) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def may(self, principal: str, kind: Kind, name: str, operation: Operation) -> bool:
        return self.is_open or any(
            acl.covers(principal, kind, name, operation) for acl in self._acls
        )

    @property
    def is_open(self) -> bool:
        """Whether everything is allowed: there are neither users nor ACLs."""
        return not self._users and not self._acls

    def acls_of(self, principal: str) -> list[Acl]:
        return [acl for acl in self._acls if acl.principal == principal]

    def exists(self, user: str) -> bool:
        return user in self._users

    def credential(self, mechanism: str, user: str) -> Credential:
        """The user's, or one that no password fits."""
        found = self._users.get(user)
        return (
            found.credentials[mechanism]
            if found is not None
            else no_credential(mechanism, user, self._secret)
        )


def read_security(state: StateTable) -> Security:
    """One look at the state table. Makes the secret when there is none."""
    secret = state.get(_SECRET)
    if secret is None:
        state.commit({_SECRET: secrets.token_bytes(32)}, expect={_SECRET: None})
        secret = state.get(_SECRET)
    users = {user.name: user for user in list_users(state)}
    return Security(users, frozenset(list_acls(state)), secret.value if secret is not None else b"")


def list_users(state: StateTable) -> list[User]:
    return sorted(
        (_decode_user.decode(entry.value) for entry in state.list(_USERS)),
        key=lambda user: user.name,
    )


def put_user(state: StateTable, name: str, password: str, *, is_new: bool) -> None:
    """Adds a user, or gives one another password. Raises InvalidRequest for one that is there
    already, NotFound for one that is not."""
    _check_principal(name)
    if not password or len(password.encode()) > PASSWORD_BYTES_MAX or "\0" in password:
        raise InvalidRequest(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes, none of them zero")
    credentials = {
        mechanism: make_credential(mechanism, password, secrets.token_bytes(SALT_BYTES))
        for mechanism in HASHES
    }
    key = _user_key(name)
    entry = state.get(key)
    if is_new and entry is not None:
        raise InvalidRequest(
            f"user {name!r} is there already; `cellfeed users passwd` gives another password"
        )
    if not is_new and entry is None:
        raise NotFound(f"no user {name!r}; `cellfeed users add` makes one")
    if (
        state.commit(
            {key: _encode.encode(User(name, credentials))},
            expect={key: entry.version if entry else None},
        )
        is None
    ):
        raise InvalidRequest(
            f"user {name!r} was changed at the same moment by somebody else; try again"
        )


def remove_user(state: StateTable, name: str) -> int:
    """Removes a user and the user's ACLs, whose number is given: a later user of that name begins
    with nothing. Raises NotFound."""
    key = _user_key(name)
    if state.get(key) is None:
        raise NotFound(f"no user {name!r}")
    theirs = [acl for acl in list_acls(state) if acl.principal == name]
    write: dict[str, bytes | None] = {key: None, **dict.fromkeys(map(_acl_key, theirs))}
    state.commit(write)
    return len(theirs)


def list_acls(state: StateTable) -> list[Acl]:
    found = [_decode_acl.decode(entry.value) for entry in state.list(_ACLS)]
    return sorted(found, key=lambda acl: (acl.principal, acl.kind, acl.pattern, acl.operation))


def allow(state: StateTable, acl: Acl) -> None:
    """Adds an ACL; one that is there already stays. Raises InvalidRequest for one that means
    nothing."""
    _check_acl(acl)
    state.commit({_acl_key(acl): _encode.encode(acl)})


def remove_acl(state: StateTable, acl: Acl) -> None:
    """Raises NotFound."""
    if state.get(_acl_key(acl)) is None:
        raise NotFound(
            f"no ACL allows {acl.principal!r} to {acl.operation} {acl.kind} {acl.pattern!r}"
        )
    state.commit({_acl_key(acl): None})


def _check_acl(acl: Acl) -> None:
    _check_principal(acl.principal)
    if acl.operation not in OPERATIONS.get(acl.kind, ()):
        known = "; ".join(
            f"{kind}: {', '.join(operations)}" for kind, operations in OPERATIONS.items()
        )
        raise InvalidRequest(
            f"{acl.operation!r} on a {acl.kind!r} cannot be allowed; there are {known}"
        )
    if not acl.pattern or "*" in acl.pattern[:-1]:
        raise InvalidRequest(f"pattern {acl.pattern!r}: a name, or a prefix with one * at its end")


def _check_principal(name: str) -> None:
    if not name or not name.isprintable() or len(name.encode()) > PRINCIPAL_BYTES_MAX:
        raise InvalidRequest(
            f"user {name!r}: a name has 1 to {PRINCIPAL_BYTES_MAX} bytes that can be printed"
        )


def _user_key(name: str) -> str:
    return _USERS + blake2b(name.encode(), digest_size=16).hexdigest()


def _acl_key(acl: Acl) -> str:
    return _ACLS + blake2b(_encode.encode(acl), digest_size=16).hexdigest()
