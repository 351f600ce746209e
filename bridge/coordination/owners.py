"""Whose a lead or a claim is, as its entry or znode says."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cellfeed.bridge.coordination.contract import Session


class Owner(msgspec.Struct, frozen=True):
    """Whose the lead or a claim is."""

    member: str
    epoch: int


def owner_of(value: bytes) -> Owner:
    return msgspec.json.decode(value, type=Owner)


def is_owned_by(value: bytes, session: Session) -> bool:
    return bool(value) and owner_of(value) == Owner(session.member, session.epoch)


def is_live(value: bytes, alive: Mapping[str, int]) -> bool:
    """Whether the session that holds a lead or a claim is among the live ones."""
    return bool(value) and alive.get((owner := owner_of(value)).member) == owner.epoch
