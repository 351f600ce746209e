"""The JSON of a wait, between client and worker (:mod:`cellfeed.store.waits.waiting`)."""

from __future__ import annotations

import msgspec

from cellfeed.store.waits.waiting import TIMEOUT_S, MissingPlace, Place, PlaceRange


class WaitMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request to wait: for the places of ``token``, at one of ``trigger``, ``index``, ``group``
    (a Kafka consumer group of the gateways), ``export`` and ``lake``, by its name. ``timeout_s``:
    how long; the worker answers after its own longest wait, so ask again until your time is
    over."""

    token: str
    trigger: str | None = None
    index: str | None = None
    group: str | None = None
    export: str | None = None
    lake: str | None = None
    timeout_s: float = TIMEOUT_S


class WaitedMessage(msgspec.Struct, kw_only=True):
    """``passed``: whether the outlet has passed every place. Then ``parked`` are the cells that it
    has set aside, and ``skipped`` the places that it never handles; it has handled the others.
    Otherwise ``missing`` says how far it is, and ``because`` why that is not known."""

    outlet: str
    passed: bool
    parked: list[Place] = []
    skipped: list[PlaceRange] = []
    missing: list[MissingPlace] = []
    because: str = ""
