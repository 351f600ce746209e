"""The test kit for services that have triggers; with pytest it is the fixture ``cellfeed_kit``, see
the guide ``docs/testing-triggers.md``.

Nothing is imported before it is asked for, so that the unused plugin costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cellfeed.testing.history import Run, RunOutcome
    from cellfeed.testing.idle_run import NotIdle, TriggerStopped
    from cellfeed.testing.kit import Kit
    from cellfeed.testing.kit_faults import FaultNeverHappened

__all__ = ["FaultNeverHappened", "Kit", "NotIdle", "Run", "RunOutcome", "TriggerStopped"]

_HOMES: Final = {
    "FaultNeverHappened": "kit_faults",
    "Kit": "kit",
    "NotIdle": "idle_run",
    "Run": "history",
    "RunOutcome": "history",
    "TriggerStopped": "idle_run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"cellfeed.testing.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
