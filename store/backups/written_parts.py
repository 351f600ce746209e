"""The state entries and the dictionaries of a backup, as they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.log_writer import BlockFile
from cellfeed.store.backups.manifest import BackedFile, BackedTurn
from cellfeed.store.backups.marker import DICTIONARIES, STATE
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.cells.dictionary import Dictionary, to_line
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import DictionaryLost


def write_state(
    place: Place, entries: Sequence[StateEntry], recipients: Recipients | None
) -> BackedFile:
    file = BlockFile(place, STATE, recipients)
    for entry in entries:
        file.add(msgspec.msgpack.encode((entry.key, entry.value)))
    return file.finish()


def readable_dictionaries(engine: Engine) -> dict[int, Dictionary]:
    """By id all that are there. Raises DictionaryLost."""
    found = {}
    for kept in engine.dictionaries.kept():
        dictionary = engine.dictionaries.find(kept.dictionary_id)
        if dictionary is None and kept.turns:
            raise DictionaryLost(
                f"dictionary {kept.name} of column {kept.column_name!r} cannot be read: bring it"
                " back with `cellfeed dictionary recover`"
            )
        if dictionary is not None:
            found[kept.dictionary_id] = dictionary
    return found


def write_dictionaries(
    place: Place, engine: Engine, found: Mapping[int, Dictionary], recipients: Recipients | None
) -> tuple[BackedFile, list[BackedTurn]]:
    turns = [
        BackedTurn(kept.column_name, turn, kept.sha256.hex())
        for kept in engine.dictionaries.kept()
        if kept.dictionary_id in found
        for turn in kept.turns
    ]
    content = b"".join(map(to_line, found.values()))
    if recipients is not None:
        content = recipients.encrypt(content)
    place.write(DICTIONARIES, content)
    return BackedFile(DICTIONARIES, len(content), sha256(content).hexdigest()), turns
