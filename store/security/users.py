"""Users and their rights, in the state table; and a process's view of them.

    security/users/<digest of the name>     {"name", "credentials": {mechanism: {salt, iterations,
                                            stored_key, server_key}}}: never the password
    security/acls/<digest>                  {"principal", "kind", "pattern", "operation"}; a pattern
                                            that ends with * is a prefix
    security/denials/<digest>               likewise; apart, because earlier versions do not know
                                            "effect", and would allow them
    security/tokens/<id>                    see :mod:`cellfeed.store.security.tokens`
    security/closed                         there since the first user, token or ACL
    security/secret                         random bytes: salts of unknown users

As long as there has been no user, token or ACL everything is allowed; from the first of them on,
only operations that an ACL allows. To remove the last one opens nothing; :func:`open_access`
does. An entry that cannot be read lets nobody in, allows nothing, and keeps access closed.

The principal of a connection without authentication is ``ANONYMOUS``; of one with a client
certificate and no SASL it is the subject (``CN=…,O=…``).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, TypeVar

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import InvalidRequest, NotFound
from cellfeed.store.limits import PASSWORD_BYTES_MAX
from cellfeed.store.security import tokens
from cellfeed.store.security.access import CLOSED, DENIALS, Security, User, check_principal
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.scram import (
    HASHES,
    SALT_BYTES,
    make_credential,
)

ANONYMOUS: Final = "ANONYMOUS"
OPERATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "datastore": ("read", "put", "erase", "operate", "describe"),
    "column": ("read", "put", "describe"),
    "topic": ("read", "describe"),
    "group": ("read", "describe", "delete", "operate"),
}
"""Operations that may be allowed on each kind; each allows describe, too, and operate on a group
allows delete."""

_USERS: Final = "security/users/"
_ACLS: Final = "security/acls/"
_SECRET: Final = "security/secret"  # noqa: S105 (a key of the state table)


_encode = msgspec.json.Encoder()
_decode_user: Final = msgspec.json.Decoder(User)
_decode_acl: Final = msgspec.json.Decoder(Acl)
T = TypeVar("T")


def read_security(state: StateTable) -> Security:
    """One look at the state table. Makes the secret when there is none."""
    secret = state.get(_SECRET)
    if secret is None:
        state.commit({_SECRET: secrets.token_bytes(32)}, expect={_SECRET: None})
        secret = state.get(_SECRET)
    closed = state.get(CLOSED)
    users, no_users = _decoded(state.list(_USERS), _decode_user)
    acls, no_acls = _decoded(state.list(_ACLS), _decode_acl)
    denials, no_denials = _decoded(state.list(DENIALS), _decode_acl)
    known, no_tokens = _decoded(state.list(tokens.TOKENS), tokens.decoder)
    return Security(
        {user.name: user for user in users},
        [*acls, *(msgspec.structs.replace(denial, effect="deny") for denial in denials)],
        secret.value if secret is not None else b"",
        tokens={token.id: token for token in known},
        is_closed=closed is not None,
        unreadable=[*no_users, *no_acls, *no_denials, *no_tokens],
    )


def _decoded(
    entries: Iterable[StateEntry], decoder: msgspec.json.Decoder[T]
) -> tuple[list[T], list[str]]:
    """The values that can be read, and the keys of the others."""
    found: list[T] = []
    unreadable: list[str] = []
    for entry in entries:
        try:
            found.append(decoder.decode(entry.value))
        except msgspec.MsgspecError:
            unreadable.append(entry.key)
    return found, unreadable


def list_users(state: StateTable) -> list[User]:
    return sorted(_decoded(state.list(_USERS), _decode_user)[0], key=lambda user: user.name)


def open_access(state: StateTable) -> None:
    """Allows everything again. Raises InvalidRequest while there is a user, a token or an ACL."""
    kinds = (_USERS, _ACLS, DENIALS, tokens.TOKENS)
    left = [entry.key for prefix in kinds for entry in state.list(prefix)]
    if left:
        raise InvalidRequest(
            f"{len(left)} users, tokens and ACLs are there: remove them first, so that nobody's"
            " rights are given to everybody by mistake"
        )
    state.commit({CLOSED: None})


def put_user(state: StateTable, name: str, password: str, *, is_new: bool) -> None:
    """Adds a user, or gives one another password. Raises InvalidRequest for one that is there
    already, NotFound for one that is not."""
    check_principal(name)
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
            {key: _encode.encode(User(name, credentials)), CLOSED: b"1"},
            expect={key: entry.version if entry else None},
        )
        is None
    ):
        raise InvalidRequest(
            f"user {name!r} was changed at the same moment by somebody else; try again"
        )


def remove_user(state: StateTable, name: str) -> int:
    """Removes a user with the user's tokens and ACLs; the number of ACLs is given. A later user of
    that name begins with nothing. Raises NotFound."""
    key = _user_key(name)
    if state.get(key) is None:
        raise NotFound(f"no user {name!r}")
    theirs = [acl for acl in list_acls(state) if acl.principal == name]
    write: dict[str, bytes | None] = {
        key: None,
        CLOSED: b"1",  # of earlier versions' users as well
        **dict.fromkeys(map(_acl_key, theirs)),
        **dict.fromkeys(
            tokens.TOKENS + token.id
            for token in tokens.list_tokens(state)
            if token.principal == name
        ),
    }
    state.commit(write)
    return len(theirs)


def list_acls(state: StateTable) -> list[Acl]:
    entries = [*state.list(_ACLS), *state.list(DENIALS)]
    found, _ = _decoded(entries, _decode_acl)
    return sorted(found, key=lambda acl: (acl.principal, acl.kind, acl.pattern, acl.operation))


def allow(state: StateTable, acl: Acl) -> None:
    """Adds an ACL; one that is there already stays. Raises InvalidRequest for one that means
    nothing."""
    _check_acl(acl)
    state.commit({_acl_key(acl): _encode.encode(acl), CLOSED: b"1"})


def remove_acl(state: StateTable, acl: Acl) -> None:
    """Raises NotFound."""
    if state.get(_acl_key(acl)) is None:
        does = "allows" if acl.effect == "allow" else "denies"
        raise NotFound(
            f"no ACL {does} {acl.principal!r} to {acl.operation} {acl.kind} {acl.pattern!r}"
        )
    state.commit({_acl_key(acl): None, CLOSED: b"1"})


def _check_acl(acl: Acl) -> None:
    check_principal(acl.principal, everybody=True)
    if acl.operation not in OPERATIONS.get(acl.kind, ()):
        known = "; ".join(
            f"{kind}: {', '.join(operations)}" for kind, operations in OPERATIONS.items()
        )
        raise InvalidRequest(
            f"{acl.operation!r} on a {acl.kind!r} cannot be allowed; there are {known}"
        )
    if not acl.pattern or "*" in acl.pattern[:-1]:
        raise InvalidRequest(f"pattern {acl.pattern!r}: a name, or a prefix with one * at its end")


def _user_key(name: str) -> str:
    return _USERS + blake2b(name.encode(), digest_size=16).hexdigest()


def _acl_key(acl: Acl) -> str:
    digest = blake2b(_encode.encode(acl), digest_size=16).hexdigest()
    return (_ACLS if acl.effect == "allow" else DENIALS) + digest
