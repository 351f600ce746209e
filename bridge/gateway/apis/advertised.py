"""The APIs that the gateway speaks, by key. An API is one module ``api_<key>_<name>.py``, which
registers itself; what is not listed is not advertised."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Final

from cellfeed.bridge.gateway.apis.registry import APIS
from cellfeed.bridge.gateway.wire.protocol import is_flexible

for _module in iter_modules([str(Path(__file__).parent)]):
    if _module.name.startswith("api_"):
        import_module(f"{__package__}.{_module.name}")

__all__ = ["APIS", "FLEXIBLE_FROM"]

FLEXIBLE_FROM: Final[dict[int, int]] = {
    key: next(
        (
            version
            for version in range(api.versions[0], api.versions[1] + 1)
            if is_flexible(key, version)
        ),
        api.versions[1] + 1,
    )
    for key, api in APIS.items()
}
"""From which version on an API's requests have tagged fields."""
