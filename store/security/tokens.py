"""Bearer tokens for HTTP, in the state table.

    security/tokens/<id>    {"id", "principal", "digest", "created_at_s", "expires_at_s"}

A token is ``cft_<id>_<secret>``: the prefix lets scanners of repositories find one that leaked, the
id names it in lists and logs, and the secret has 256 random bits. Only SHA-256 of the whole token
is stored, from which nobody can make it: a secret of that length needs no salt and no slow hash.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import InvalidRequest, NotFound
from cellfeed.store.security.access import CLOSED, AccessToken, check_principal
from cellfeed.store.security.scram import AuthenticationFailed

TOKENS: Final = "security/tokens/"
PREFIX: Final = "cft_"
_TOKEN: Final = re.compile(r"cft_([0-9a-f]{12})_[0-9a-f]{64}")
_ID: Final = re.compile(r"[0-9a-f]{12}")
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_NOBODYS: Final = b"\0" * 32

encode: Final = msgspec.json.Encoder().encode
decoder: Final = msgspec.json.Decoder(AccessToken)


def create_token(state: StateTable, principal: str, lifetime_s: float | None) -> str:
    """Makes a token of the principal that counts for ``lifetime_s`` seconds (None: until it is
    revoked). Returns it; nobody can see it again. Raises InvalidRequest."""
    check_principal(principal)
    if lifetime_s is not None and not lifetime_s > 0:
        raise InvalidRequest("a token has to count for some time")
    name = secrets.token_hex(_ID_BYTES)
    text = f"{PREFIX}{name}_{secrets.token_hex(_SECRET_BYTES)}"
    now_s = time.time()
    expires_at_s = None if lifetime_s is None else now_s + lifetime_s
    token = AccessToken(name, principal, digest_of(text), now_s, expires_at_s)
    key = TOKENS + name
    if state.commit({key: encode(token), CLOSED: b"1"}, expect={key: None}) is None:
        raise InvalidRequest("another token has this one's id: try again")
    return text


def list_tokens(state: StateTable) -> list[AccessToken]:
    """Those that can be read, by principal and age."""
    found = []
    for entry in state.list(TOKENS):
        try:
            found.append(decoder.decode(entry.value))
        except msgspec.MsgspecError:
            continue
    return sorted(found, key=lambda token: (token.principal, token.created_at_s))


def revoke_token(state: StateTable, name: str) -> None:
    """Ends a token by its id; a whole token is taken for its id, too. Raises NotFound."""
    whole = _TOKEN.fullmatch(name)
    name = whole[1] if whole else name
    if not _ID.fullmatch(name) or state.get(TOKENS + name) is None:
        raise NotFound("no such token; `cellfeed tokens list` has the ids of those that are there")
    state.commit({TOKENS + name: None, CLOSED: b"1"})


def token_of(tokens: Mapping[str, AccessToken], text: str, now_s: float) -> AccessToken:
    """The stored token that ``text`` is. Raises AuthenticationFailed, whose reason has no
    secret."""
    form = _TOKEN.fullmatch(text)
    known = tokens.get(form[1]) if form else None
    fits = hmac.compare_digest(digest_of(text), known.digest if known else _NOBODYS)
    if form is None or known is None or not fits:
        raise AuthenticationFailed("no such token: it is mistyped or was revoked")
    if known.expires_at_s is not None and known.expires_at_s <= now_s:
        raise AuthenticationFailed(f"token {known.id} has expired")
    return known


def digest_of(text: str) -> bytes:
    """The stored hash of a token."""
    return sha256(text.encode()).digest()


def without_secrets(text: str) -> str:
    """``text`` with the secret of each token in it left out, for messages that quote a peer."""
    return re.sub(r"cft_([0-9a-f]{0,12})_?[0-9a-f]*", r"cft_\1…", text)
