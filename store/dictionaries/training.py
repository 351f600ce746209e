"""From samples of a column to a dictionary that is worth being kept for ever, or to the reason why
there is none.

The saving is measured on bodies that were not trained on, and each must come back as it was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import zstandard

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.body_encoding import DICTIONARY_BODY_BYTES_MAX, encode_bodies, encode_with
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.cells.known_dictionaries import KnownDictionary, know
from cellfeed.store.dictionaries.blanking import blanked
from cellfeed.store.limits import DICTIONARY_BYTES

SAMPLES_WANTED: Final = 4_000
"""Bodies after which a column's sample is complete: enough to distinguish the values that few row
keys have, also in a load that is sorted by them."""

TRAINED_WANTED: Final = 1_000
"""Bodies of a sample that the dictionary is trained on, and as many that it is measured on. More
make no better one: of taxi trips 500, 1,000 and 2,000 give the same within a hundredth."""

SAMPLE_BYTES_MAX: Final = 4 << 20
"""Canonical JSON of a column's sample, bytes: a sample of large bodies is complete earlier."""

SAMPLES_MIN: Final = 400
"""Bodies, and row keys, without which nothing is trained: too few to distinguish common property
from one person's values."""

SAVED_PART_MIN: Final = 0.1
"""Of the bytes without a dictionary: below that it is not worth keeping one for ever."""

_LEVEL: Final = 3


class Sample(NamedTuple):
    """A body, and whose it is."""

    row_key: bytes
    body_json: bytes


@dataclass(frozen=True)
class Trained:
    """``bytes_before`` and ``bytes_after``: a stored body's mean size without and with the
    dictionary, on bodies held back."""

    dictionary: Dictionary
    bytes_before: float
    bytes_after: float


class NotWorthIt(Exception):
    """Why the samples make no dictionary."""


def is_sampled(body_json: bytes) -> bool:
    """Whether a body of this size is one for a dictionary."""
    return len(body_json) <= DICTIONARY_BODY_BYTES_MAX


def train(column_name: str, samples: Sequence[Sample]) -> Trained:
    """Raises NotWorthIt. Nothing of single row keys is in the result
    (:mod:`cellfeed.store.dictionaries.blanking`)."""
    row_keys = {sample.row_key for sample in samples}
    if min(len(samples), len(row_keys)) < SAMPLES_MIN:
        raise NotWorthIt(
            f"{len(samples)} bodies of {len(row_keys)} row keys; it takes {SAMPLES_MIN} of each to"
            " find their common parts"
        )
    every = max(2, len(samples) // TRAINED_WANTED)
    copies = blanked(samples, every=every)
    unseen = [sample.body_json for sample in samples[1::every]]
    try:
        content = zstandard.train_dictionary(
            DICTIONARY_BYTES, list[bytes | bytearray | memoryview](copies), level=_LEVEL
        ).as_bytes()
    except zstandard.ZstdError as error:
        raise NotWorthIt(f"zstd makes no dictionary of {len(copies)} bodies: {error}") from None
    dictionary = Dictionary(column_name, content, time.time_ns() // 1000, len(copies))
    with_it = encode_with(KnownDictionary(dictionary), unseen)
    before = sum(map(len, encode_bodies(unseen))) / len(unseen)
    after = sum(map(len, with_it)) / len(unseen)
    if after > (1 - SAVED_PART_MIN) * before:
        raise NotWorthIt(
            f"bodies of {before:.0f} bytes would become {after:.0f}: less than {SAVED_PART_MIN:.0%}"
            " saved"
        )
    know(dictionary)
    if [decode_body(body) for body in with_it] != unseen:
        raise NotWorthIt("bodies do not come back as they were; nothing is stored with it")
    return Trained(dictionary, before, after)
