"""Callers of a server that asks nobody for credentials."""

from __future__ import annotations

from cellfeed.store.http.server.callers import Callers
from cellfeed.store.security.authority import Authority
from tests.support.state_in_memory import StateInMemory


def open_callers() -> Callers:
    return Callers("trips", Authority(StateInMemory()), required=False)
