"""The kinds of processes that ``cellfeed up`` starts. A kind is one module of this package, which
registers itself; local servers are :mod:`cellfeed.servers`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from cellfeed.config.model import Config, server_kind
from cellfeed.kinds.registry import KINDS

for _module in iter_modules([str(Path(__file__).parent)]):
    import_module(f"{__package__}.{_module.name}")

__all__ = ["KINDS", "process_names"]


def process_names(config: Config) -> list[tuple[str, str]]:
    """``(name, kind)`` of every process that the configuration names, in the order in which they
    start: servers first."""
    names = [(server.name, server_kind(server)) for server in config.servers]
    for kind in sorted(KINDS.values(), key=lambda each: each.position):
        names += [(name, kind.name) for name in kind.names(config)]
    return names
