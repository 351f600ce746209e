"""The findings of an examination, and how bad each is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.status.instance_status import InstanceStatus


class Level(StrEnum):
    """``well``: nothing to do. ``advice``: it works, and something else would be better.
    ``problem``: cells wait, are at risk or will not be written soon. ``unknown``: it could not be
    looked at, so nobody knows."""

    WELL = "well"
    ADVICE = "advice"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One look at one thing. ``area``: the examined part (``disk``, ``servers`` …). ``subject``:
    which one of it. ``remedy``: empty where all is well."""

    area: str
    subject: str
    level: Level
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Instance(NamedTuple):
    """The examined instance. ``status``: read a moment ago."""

    directory: RunDir
    config: Config
    status: InstanceStatus
