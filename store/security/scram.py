"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the server's side. Pure: no socket, no
clock, nonces are given.

Of a password its salt, its iterations and two keys are kept, from which it cannot be derived; the
same keys verify a password that is sent as such (PLAIN). An unknown user gets the answer of a known
one, with a salt that is always the same for that name. The proof then fails.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from typing import Final

import msgspec

from cellfeed.store.limits import SCRAM_ITERATIONS

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism to hash function."""

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *HASHES)
"""All that a listener can offer."""

SALT_BYTES: Final = 16


class Credential(msgspec.Struct, frozen=True):
    """The keys kept of a password for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"Credential(iterations={self.iterations})"


class AuthenticationFailed(Exception):
    """The reason is for the log; the peer gets the same answer for every reason."""


def make_credential(
    mechanism: str, password: str, salt: bytes, iterations: int = SCRAM_ITERATIONS
) -> Credential:
    """Blocks for some milliseconds: that is its purpose."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return Credential(
        salt,
        iterations,
        hashlib.new(name, client_key).digest(),
        hmac.digest(salted, b"Server Key", name),
    )


def is_password(mechanism: str, credential: Credential, password: str) -> bool:
    """Whether a password is the one that the credential was made of. Blocks as
    :func:`make_credential` does."""
    made = make_credential(mechanism, password, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


def no_credential(mechanism: str, user: str, secret: bytes) -> Credential:
    """In place of the credential of an unknown user: no password fits it. ``secret`` makes its salt
    look like a real one."""
    name = HASHES[mechanism]
    salt = hmac.digest(secret, user.encode(), name)[:SALT_BYTES]
    size = hashlib.new(name).digest_size
    return Credential(salt, SCRAM_ITERATIONS, b"\x00" * size, b"\x00" * size)


class ScramExchange:
    """One authentication: :meth:`first`, then :meth:`final`. ``find`` gives the credential of a
    user, or one that no password fits. ``nonce``: printable ASCII without a comma."""

    def __init__(self, mechanism: str, find: Callable[[str], Credential], nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._find = find
        self._nonce = nonce
        self._expected: tuple[Credential, str, str, str] | None = None
        self.user = ""

    def first(self, message: bytes) -> bytes:
        """The answer to the client's first message. Raises AuthenticationFailed."""
        text = _text(message)
        gs2, separator, bare = _split_gs2(text)
        attributes = _attributes(bare)
        if (
            not separator
            or len(attributes) < 2
            or attributes[0][0] != "n"
            or attributes[1][0] != "r"
        ):
            raise AuthenticationFailed("not a SCRAM client-first-message")
        # Extensions may follow; a mandatory one (m=) comes first, and so was refused.
        user, client_nonce = _unescaped(attributes[0][1]), attributes[1][1]
        authorization = gs2.split(",")[1]
        if authorization and _unescaped(authorization.removeprefix("a=")) != user:
            raise AuthenticationFailed("acting for another user is not allowed")
        if not client_nonce or not user:
            raise AuthenticationFailed("no name or no nonce")
        self.user = user
        credential = self._find(user)
        nonce = client_nonce + self._nonce
        answer = f"r={nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        self._expected = credential, nonce, f"{bare},{answer}", b64encode(gs2.encode()).decode()
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """The answer to the client's last message, which proves that the server knows the keys,
        too. Raises AuthenticationFailed."""
        if self._expected is None:
            raise AuthenticationFailed("a last message without a first one")
        (credential, nonce, begun, binding), self._expected = self._expected, None
        text = _text(message)
        without_proof, _, proof_text = text.rpartition(",p=")
        attributes = dict(_attributes(without_proof)) if without_proof else {}
        if attributes.get("c") != binding or not hmac.compare_digest(
            attributes.get("r", "").encode(), nonce.encode()
        ):
            raise AuthenticationFailed(
                "the nonce or the channel binding is not that of the first message"
            )
        try:
            proof = b64decode(proof_text, validate=True)
        except (NotBase64, ValueError):
            raise AuthenticationFailed("the proof is not base64") from None
        signed = f"{begun},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        if len(proof) != len(signature):
            raise AuthenticationFailed("the proof has another length")
        client_key = bytes(mine ^ theirs for mine, theirs in zip(signature, proof, strict=True))
        if not hmac.compare_digest(
            hashlib.new(self._hash, client_key).digest(), credential.stored_key
        ):
            raise AuthenticationFailed("the proof does not fit the password")
        return b"v=" + b64encode(hmac.digest(credential.server_key, signed, self._hash))


def plain_message(message: bytes) -> tuple[str, str]:
    """``(user, password)`` of a PLAIN token (RFC 4616). Raises AuthenticationFailed."""
    parts = _text(message).split("\0")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise AuthenticationFailed("not a PLAIN token")
    authorization, user, password = parts
    if authorization not in ("", user):
        raise AuthenticationFailed("acting for another user is not allowed")
    return user, password


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("a message that is not UTF-8") from None


def _split_gs2(text: str) -> tuple[str, str, str]:
    """``(gs2 header with its commas, separator, the bare message)``."""
    parts = text.split(",", 2)
    if (
        len(parts) != 3
        or parts[0] not in ("n", "y")
        or (parts[1] and not parts[1].startswith("a="))
    ):
        raise AuthenticationFailed("channel binding is not supported, or no SCRAM message")
    return f"{parts[0]},{parts[1]},", ",", parts[2]


def _attributes(text: str) -> list[tuple[str, str]]:
    found = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not name or not equals:
            raise AuthenticationFailed("an attribute without a value")
        found.append((name, value))
    return found


def _unescaped(name: str) -> str:
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        raise AuthenticationFailed("a name with an escape that there is not")
    return name.replace("=2C", ",").replace("=3D", "=")
