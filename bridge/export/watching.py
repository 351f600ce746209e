"""``export run --verify``: partitions and shards are compared beside the export, on a thread of its
own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import Final

from confluent_kafka import KafkaException

from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_errors import error_of, words
from cellfeed.bridge.export.verify import ExportVerifier
from cellfeed.store.background import SupervisedThread
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, DataDamaged, NotFound

EVERY_S: Final = 10.0
"""Pause between two looks, each of which compares the records since the last."""

_log: Final = logging.getLogger("cellfeed.export")


class Watching:
    """A difference sets ``stop``: it is no use to export on."""

    def __init__(
        self,
        exports: Sequence[Export],
        datastore: Datastore,
        stop: threading.Event,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._datastore = datastore
        self._stop = stop
        self._every_s = every_s
        self._found: DataDamaged | None = None
        self._threads = [
            SupervisedThread(f"export-verify-{export.name}", partial(self._watch, export))
            for export in exports
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> DataDamaged | None:
        """To be called when the export has ended: the difference found, if any."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self._found

    def _watch(self, export: Export) -> None:
        verifier: ExportVerifier | None = None
        while not self._stop.wait(self._every_s):
            try:
                if verifier is None:
                    verifier = ExportVerifier(export, self._datastore)
                for verdict in verifier.look():
                    if not verdict.equal:
                        self._found = DataDamaged(
                            f"export {export.name}: shard {verdict.shard} differs from cell"
                            f" {verdict.differs_at} on: {verdict.what}"
                        )
                        _log.error("%s", self._found)
                        self._stop.set()
                        break
                    if self._stop.is_set():
                        break
            except NotFound:
                continue  # it has not begun yet
            except KafkaException as error:
                _log.warning(
                    "%s could not be compared just now: %s", export.group, words(error_of(error))
                )
            except CellfeedError as error:
                _log.warning("%s could not be compared just now: %s", export.group, error)
        if verifier is not None:
            verifier.close()
