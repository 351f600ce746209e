"""The part of an encrypted backup's manifest that only an identity reads.

It has the fields that come from users, or that would confirm a guess at these: row keys that were
erased, names of columns and of readers, dictionaries by their hash, digests over cells. In the
manifest it is one age message in base64. The fields themselves are empty there.

The witness of a log (:mod:`cellfeed.store.backups.base`) stays readable, since an increment is
taken without an identity. That of an encrypted backup holds no row key.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64

import msgspec

from cellfeed.store.backups.encryption import Identities, Recipients
from cellfeed.store.backups.manifest import BackedErasure, BackedTurn, Manifest, Reader
from cellfeed.store.errors import DataDamaged


class PrivatePart(msgspec.Struct, frozen=True):
    """``digests``: those of the manifest's segments, in their order."""

    digests: list[str]
    columns: list[str]
    turns: list[BackedTurn]
    readers: list[Reader]
    erasures: list[BackedErasure] | None


def locked(manifest: Manifest, recipients: Recipients) -> Manifest:
    """The manifest as it is written."""
    part = PrivatePart(
        [each.digest for each in manifest.segments],
        manifest.columns,
        manifest.turns,
        manifest.readers,
        manifest.erasures,
    )
    return msgspec.structs.replace(
        _with(manifest, PrivatePart([""] * len(manifest.segments), [], [], [], None)),
        recipients=list(recipients.keys),
        private=b64encode(recipients.encrypt(msgspec.json.encode(part))).decode(),
    )


def unlocked(manifest: Manifest, identities: Identities) -> Manifest:
    """The manifest with all that it says. Raises InvalidRequest for an identity that is none of its
    recipients', DataDamaged."""
    what = f"backup {manifest.name}"
    identities.refuse_unless_fitting(what, manifest.recipients)
    try:
        message = b64decode(manifest.private, validate=True)
        part = msgspec.json.decode(
            identities.decrypt(message, f"{what}: the manifest's private part"), type=PrivatePart
        )
        return msgspec.structs.replace(_with(manifest, part), private="")
    except (NotBase64, msgspec.MsgspecError, ValueError) as error:
        raise DataDamaged(f"{what}: the manifest's private part is damaged: {error}") from error


def _with(manifest: Manifest, part: PrivatePart) -> Manifest:
    return msgspec.structs.replace(
        manifest,
        segments=[
            msgspec.structs.replace(segment, digest=digest)
            for segment, digest in zip(manifest.segments, part.digests, strict=True)
        ],
        columns=part.columns,
        turns=part.turns,
        readers=part.readers,
        erasures=part.erasures,
    )
