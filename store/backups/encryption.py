"""Encryption of backups with age (https://age-encryption.org/v1), through the library pyrage.

A backup is made with **recipients**, public keys (`age1…`). Any one of their **identities**, secret
keys (`AGE-SECRET-KEY-1…`), decrypts it. So the machine that takes backups needs no secret, and a
prune, an increment and a check of completeness need none either.

    encrypted   bodies, row keys, column names: the blocks of `cells-…`, the state, the
                dictionaries, the private part of the manifest
                (:mod:`cellfeed.store.backups.private_part`), the row keys of the register of
                erasures.
    readable    the marker; of the manifest: names, sequence, histories, recipients, ids and times
                of the logs' ends; and lengths and SHA-256 of the files as they lie there,
                encrypted.

Nothing is written in the clear and encrypted later: a killed backup leaves ciphertext.

Each piece is an age message of its own, so a restore reads any of them without the others, and
holds one in memory. age proves that a message was not changed, but neither its author nor its
place. The SHA-256 of each file, in the manifest, proves the place.

pyrage is imported where it is used: most commands need neither it nor its time.

A secret never stands in a command line or in an error: identities come from files, and errors name
the file and the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyrage

from cellfeed.store.errors import DataDamaged, InvalidRequest, StorageUnavailable

_SECRET_BEGINS: Final = "AGE-SECRET-KEY-"  # noqa: S105 - no secret, but what one begins with
_PASSPHRASE: Final = ("age-encryption.org/", "-----BEGIN AGE ENCRYPTED FILE-----")
"""The beginnings of a file of identities that is encrypted itself."""


class Recipients:
    """Whom a backup is encrypted to. ``keys``: sorted, each once, as age writes them."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Raises InvalidRequest for a key that is no age recipient, or for none at all."""
        if not keys:
            raise InvalidRequest(
                "no recipient: a file of recipients has one age1… in a line; lines that begin with"
                " # are comments"
            )
        found = {str(each): each for each in map(_recipient, keys)}
        self.keys = tuple(sorted(found))
        self._recipients = [found[each] for each in self.keys]

    def encrypt(self, content: bytes) -> bytes:
        """An age message."""
        message: bytes = pyrage.encrypt(content, self._recipients)
        return message


class Identities:
    """Secret keys of files. ``keys``: their public halves; ``files``: for errors."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Raises InvalidRequest for a line that is no age identity."""
        self.files = tuple(files)
        self._identities = [each for path in files for each in _lines(path, _identity)]
        self.keys = {str(each.to_public()) for each in self._identities}

    def refuse_unless_fitting(self, what: str, recipients: Sequence[str]) -> None:
        """Raises InvalidRequest where none of them decrypts a message to these recipients."""
        if self.keys.isdisjoint(recipients):
            raise InvalidRequest(
                f"{what} is encrypted to {', '.join(recipients)}; {_named(self.files)} has the"
                f" identity of {', '.join(sorted(self.keys))}: give that of one of the recipients"
                " with --identity"
            )

    def decrypt(self, message: bytes, what: str) -> bytes:
        """The content of an age message whose recipients fit. Raises DataDamaged."""
        try:
            content: bytes = pyrage.decrypt(message, self._identities)
        except pyrage.DecryptError as error:
            raise DataDamaged(
                f"{what}: it cannot be decrypted, though its recipients fit: {error}"
            ) from None
        return content


def identity_needed(what: str, recipients: Sequence[str]) -> InvalidRequest:
    """The error where an identity is needed and none was given."""
    return InvalidRequest(
        f"{what} is encrypted to {', '.join(recipients)}: give a file with the identity of one of"
        " them with --identity"
    )


def recipients_of(keys: Sequence[str], files: Sequence[Path]) -> Recipients | None:
    """Those of a command line and of files; None where neither is given. Raises InvalidRequest."""
    if not keys and not files:
        return None
    return Recipients([*keys, *(str(each) for path in files for each in _lines(path, _recipient))])


def identities_of(files: Sequence[Path]) -> Identities | None:
    """Those of files; None where none is given. Raises InvalidRequest."""
    return Identities(files) if files else None


def _recipient(text: str) -> Any:
    if text.upper().startswith(_SECRET_BEGINS):
        raise InvalidRequest(
            "a secret key stands where a recipient should be: give its public half (age1…), which"
            " `age-keygen -y FILE` prints. Everybody who could read that place may have the secret"
        )
    try:
        return pyrage.x25519.Recipient.from_str(text)
    except pyrage.RecipientError:
        raise InvalidRequest(
            "no age recipient: one is age1 and 58 letters and digits, as `age-keygen` prints it"
        ) from None


def _identity(text: str) -> Any:
    try:
        return pyrage.x25519.Identity.from_str(text)
    except pyrage.IdentityError:
        raise InvalidRequest(
            "no age identity (AGE-SECRET-KEY-1…), as `age-keygen` writes them"
        ) from None


def _lines(path: Path, parse: Callable[[str], Any]) -> list[Any]:
    """The parsed lines of a file, without comments. Raises InvalidRequest with the line's number,
    and never its text: it may be a secret."""
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path}: it is no text file with an age key in each line") from None
    except OSError as error:
        raise StorageUnavailable(f"{path}: {error.strerror}") from error
    if text.startswith(_PASSPHRASE):
        raise InvalidRequest(
            f"{path} is encrypted with a passphrase: decrypt it first, with `age -d`, to a place"
            " in memory"
        )
    found = list(_parsed(path, text, parse))
    if not found:
        raise InvalidRequest(f"{path}: it has no age key")
    return found


def _parsed(path: Path, text: str, parse: Callable[[str], Any]) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if (key := line.strip()) and not key.startswith("#"):
            try:
                yield parse(key)
            except InvalidRequest as error:
                raise InvalidRequest(f"{path}, line {number}: {error}") from None


def _named(files: Iterable[Path]) -> str:
    return ", ".join(map(str, files))
