"""The result of a promotion."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Promotion:
    """The result of a promotion. ``gave_up``: nodes that were left out; ``position``: the new
    master's when it became one."""

    cluster: str
    master: str
    epoch: int
    old_master: str
    fenced: bool
    minions: list[str] = field(default_factory=list)
    gave_up: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Nodes that are no minions: they do not follow the old master, and never have."""

    position: str = ""
