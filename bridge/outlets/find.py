"""The outlets of a datastore, by kind and name. A name that there is not is an error at once, never
a wait until the time is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.control import EXPORTS
from cellfeed.bridge.groups.definition import belongs_to_cellfeed, defined_groups
from cellfeed.bridge.outlets.consumers import ConsumerGroup
from cellfeed.bridge.outlets.exports import ExportOutlet
from cellfeed.bridge.outlets.groups import GroupOutlet
from cellfeed.bridge.outlets.indexes import IndexOutlet
from cellfeed.bridge.outlets.lakes import LakeOutlet, LakeTable
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import NotFound
from cellfeed.store.waits.waiting import Find, Kind, Outlet


def outlets(
    datastore: Datastore,
    coordinator: Coordinator,
    lakes: Callable[[], Mapping[str, LakeTable]] = dict,
) -> Find:
    """Finds outlets; to be given to ``datastore.waits``. ``lakes``: of the configuration, by name;
    asked when somebody waits for one."""

    def find(kind: Kind, name: str) -> Outlet:
        if kind == "trigger":
            if name not in (known := _triggers(datastore, coordinator)):
                _unknown("trigger", name, known, "it has not run yet, or its group has this name")
            return GroupOutlet(f"trigger {name!r}", name, datastore, coordinator)
        if kind == "index":
            known = {record.name for record in datastore.indexes.catalog.all()}
            if name not in known:
                _unknown("index", name, known, "cellfeed index list shows them")
            return IndexOutlet(name, datastore, coordinator)
        if kind == "export":
            groups = LagReader(datastore, coordinator).exports()
            known = {group.removeprefix(EXPORTS) for group in groups}
            if name not in known:
                _unknown("export", name, known, "it has not run yet, or it was forgotten")
            return ExportOutlet(name, datastore, coordinator)
        if kind == "lake":
            if (table := (tables := lakes()).get(name)) is None:
                _unknown("lake", name, tables, "those of this worker's configuration")
            return LakeOutlet(name, table, datastore, coordinator)
        triggers = _triggers(datastore, coordinator)
        known = {
            group
            for group in coordinator.groups()
            if group not in triggers and not belongs_to_cellfeed(group)
        }
        if name not in known:
            _unknown("consumer group", name, known, "it has not committed an offset yet")
        return ConsumerGroup(name, datastore, coordinator)

    return find


def _triggers(datastore: Datastore, coordinator: Coordinator) -> set[str]:
    groups = {*LagReader(datastore, coordinator).groups(), *defined_groups(datastore.state)}
    return {group for group in groups if not belongs_to_cellfeed(group)}


def _unknown(what: str, name: str, known: Iterable[str], hint: str) -> NoReturn:
    there_are = ", ".join(sorted(known)) or "none"
    raise NotFound(f"there is no {what} {name!r} here; there are: {there_are} ({hint})")
