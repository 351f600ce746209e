"""Forgetting an export that is not to run any more: its settled terms, its offsets, its parked
cells, the reports of its processes. The topic stays as it is.

While it is remembered trims wait for it, it stands in every list, and its name cannot be given to
another view, format or topic. Afterwards the name is free, and a new export of that name begins as
if there had been none. Where its partitions have cells of this log, it continues behind them.

**Nobody works on it.** The forgetting process joins the group and pauses it. So no exporter that
starts meanwhile prepares itself by terms that are about to be deleted. Then the process must be the
only member. It claims every shard, so a save of an exporter that was paused for long is refused.
Where the configuration still has the export, its Kafka cluster bars the producers of all its units.
So no record that a paused exporter still sends is ever committed.

Crash points:

    before the offsets are deleted      nothing was forgotten; the pause and the membership end with
                                        the session
    between them and the commit         the offsets are gone, but they are a mirror: the export
                                        continues behind its partitions, or is forgotten the next
                                        time
    after the commit                    all of it is forgotten
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import suppress
from typing import Final

import msgspec
from confluent_kafka import KafkaException

from cellfeed.bridge.coordination.contract import Claim, Coordinator
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.export_terms import ExportTerms, read_terms, terms_key
from cellfeed.bridge.export.kafka_errors import error_of, words
from cellfeed.bridge.export.unit_producer import UnitProducer
from cellfeed.bridge.groups.control import (
    EXPORTS,
    OPERATOR,
    Control,
    Pause,
    group_prefix,
    notify_workers,
)
from cellfeed.bridge.groups.history import Deed, Operator, entry
from cellfeed.bridge.groups.membership import LeaseKeeper, Membership
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, NotFound, Refused, Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare("export.before_forgotten", "export.half_forgotten")

_LEASE_S: Final = 10.0
"""How long a process that was killed while it forgets keeps exporters from starting."""


class Forgotten(msgspec.Struct, frozen=True):
    """The removed data. ``units`` is 0 where it had never begun."""

    export: str
    units: int
    offsets: int
    parked: int


def forget_export(
    datastore: Datastore,
    coordinator: Coordinator,
    name: str,
    export: Export | None,
    operator: Operator,
) -> Forgotten:
    """``export``: as configured, None where it is not any more. Raises NotFound where there is
    nothing of it, Refused, with nothing changed, while an exporter has a part in it; Unavailable
    when its cluster, or the coordination, does not answer."""
    group, state = EXPORTS + name, datastore.state
    agreed, offsets = read_terms(datastore, name), coordinator.fetch_offsets(group)
    parked = ParkedCells(state).entries_of(group)
    if agreed is None and not offsets and not parked and not state.list(group_prefix(group)):
        raise NotFound(f"there is nothing of an export {name!r} here that could be forgotten")
    member = f"{OPERATOR}{operator.name} {os.getpid()}-{secrets.token_hex(4)}"
    membership = Membership(coordinator, group, member, _LEASE_S)
    keeper = LeaseKeeper([membership], _LEASE_S)
    reset_key, claims = Control(state, group).reset_key, list[Claim]()
    try:
        _write_pause(
            datastore,
            coordinator,
            group,
            Pause(operator.name, operator.because, state.now_us(), member),
        )
        if others := [each for each in coordinator.members(group) if each != member]:
            raise Refused(
                f"export {name!r} is at work ({', '.join(others)}): stop its exporters first"
            )
        claims += coordinator.claim(
            membership.session, datastore.name, range(datastore.shards)
        ).values()
        if len(claims) < datastore.shards:
            raise Refused(
                f"export {name!r}: {datastore.shards - len(claims)} of its shards are not free yet;"
                " try again in a moment"
            )
        if export is not None and agreed is not None:
            _bar(export, agreed)
        failpoint("export.before_forgotten")
        coordinator.delete_offsets(group, claims=claims)
        failpoint("export.half_forgotten")
        deed = Deed(
            group=group,
            action="forgotten",
            by=operator.name,
            because=operator.because,
            at_us=state.now_us(),
        )
        gone = [*parked, *(each.key for each in state.list(group_prefix(group))), terms_key(name)]
        state.commit({**dict.fromkeys(gone), **entry(deed)})
        return Forgotten(name, 0 if agreed is None else agreed.units, len(offsets), len(parked))
    finally:
        # A step that fails here is settled when the session has run out.
        with suppress(CellfeedError):
            _let_go(datastore, reset_key, member)
        with suppress(CellfeedError):
            coordinator.release(claims)
        with suppress(CellfeedError):
            membership.leave()
        keeper.close()
        notify_workers(state, group)


def _write_pause(datastore: Datastore, coordinator: Coordinator, group: str, pause: Pause) -> None:
    state, key = datastore.state, Control(datastore.state, group).reset_key
    found = state.get(key)
    if found is not None and msgspec.json.decode(
        found.value, type=Pause
    ).member in coordinator.members(group):
        raise Refused(f"{group} is being forgotten by somebody else just now")
    if (
        state.commit(
            {key: msgspec.json.encode(pause)}, expect={key: found.version if found else None}
        )
        is None
    ):
        raise Refused(f"{group} is being forgotten by somebody else just now")


def _let_go(datastore: Datastore, key: str, member: str) -> None:
    found = datastore.state.get(key)
    if found is not None and msgspec.json.decode(found.value, type=Pause).member == member:
        datastore.state.commit({key: None}, expect={key: found.version})


def _bar(export: Export, agreed: ExportTerms) -> None:
    """Fences the producers of every unit."""
    for unit in range(agreed.units):
        producer = UnitProducer(export, unit, agreed.topic, threading.Event())
        try:
            producer.fence()
        except KafkaException as error:
            raise Unavailable(
                f"the Kafka cluster at {export.bootstrap} could not bar the producers of export"
                f" {export.name!r} ({words(error_of(error))}); one that is gone for good is not"
                " asked once the export is out of the configuration"
            ) from error
        finally:
            producer.give_up()
