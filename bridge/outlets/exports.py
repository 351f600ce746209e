"""An export as an outlet. Its offsets are saved once readers of commits see the records. So they
may be behind its partitions, and are never ahead."""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.export.export_terms import read_terms
from cellfeed.bridge.groups.control import EXPORTS
from cellfeed.bridge.outlets.groups import GroupOutlet
from cellfeed.store.cells.token import Places
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Trimmed
from cellfeed.store.waits.waiting import Passed


class ExportOutlet(GroupOutlet):
    """See the module."""

    def __init__(self, name: str, datastore: Datastore, coordinator: Coordinator) -> None:
        super().__init__(f"export {name!r}", EXPORTS + name, datastore, coordinator)
        self._name = name

    def passed(self, places: Sequence[Places]) -> Passed | None:
        """Raises Trimmed where an export could have passed trimmed cells over."""
        refuse_trimmed(self.title, self._datastore, places)
        return super().passed(places)

    def _lost(self) -> None:
        """An export resumes by its partitions: offsets that were lost stop nothing."""
        return

    def _starts(self) -> Sequence[int]:
        terms = read_terms(self._datastore, self._name)
        return () if terms is None else terms.starts


def refuse_trimmed(title: str, datastore: Datastore, places: Sequence[Places]) -> None:
    """Raises Trimmed for places below the starts of the logs."""
    heads = datastore.heads()
    for each in places:
        if each.first < heads[each.shard].log_start:
            raise Trimmed(
                f"shard {each.shard} was trimmed below {heads[each.shard].log_start}: nobody"
                f" can tell whether {title} had {each.first} before that"
            )
