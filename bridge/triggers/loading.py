"""Loading a program: the triggers of a module or a file.

A program is a module with marked functions, a list of triggers, or a function that makes the list
from settings.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from cellfeed.bridge.triggers.program import _MARK, Trigger
from cellfeed.store.errors import InvalidRequest


def load_program(
    source: str, settings: Mapping[str, Any] | None = None, *, entry: str = ""
) -> list[Trigger]:
    """The triggers of ``module``, ``module:name``, ``file.py`` or ``file.py:name``.

    ``name`` may be one trigger, a list of them, or a function that takes the settings (a dict) and
    gives the list. ``entry``: the name in the configuration, which is the group of a trigger whose
    code names none. Raises InvalidRequest with the fault.
    """
    place, _, name = source.partition(":")
    module = _module(place, source)
    if not name:
        found = [value for value in vars(module).values() if hasattr(value, _MARK)]
    else:
        value = getattr(module, name, None)
        if value is None:
            raise InvalidRequest(f"{source}: {place} has no {name!r}")
        if callable(value) and not hasattr(value, _MARK):
            value = value(dict(settings or {}))
        found = list(value) if isinstance(value, Sequence) else [value]
    if not found or not all(hasattr(value, _MARK) or isinstance(value, Trigger) for value in found):
        raise InvalidRequest(
            f"{source}: no triggers found; mark functions with @trigger(column=...)"
        )
    marked = [value if isinstance(value, Trigger) else getattr(value, _MARK) for value in found]
    _check_unnamed([each for each in marked if not each.group], source, entry)
    triggers = [replace(each, group=each.group or entry, entry=entry) for each in marked]
    groups = [each.group for each in triggers]
    if len(set(groups)) != len(groups):
        raise InvalidRequest(
            f"{source}: two triggers have the group {max(groups, key=groups.count)!r}; give each"
            " its own"
        )
    return triggers


def _check_unnamed(unnamed: Sequence[Trigger], source: str, entry: str) -> None:
    """Raises InvalidRequest where it is not said which group a trigger has."""
    if len(unnamed) > 1:
        raise InvalidRequest(
            f"{source}: {', '.join(each.function_name for each in unnamed)} have no group; one may"
            " have the name of the entry, give the others theirs: @trigger(..., group=NAME)."
            f" Earlier versions called them {', '.join(each.earlier_group for each in unnamed)}"
        )
    if unnamed and not entry:
        raise InvalidRequest(
            f"{source}: {unnamed[0].function_name} has no group: give its entry under triggers: a"
            " name (name: NAME; --name NAME for a program without an entry), or name the group in"
            " code: @trigger(..., group=NAME)"
        )


_MOVED: Final = {"consumers.billing.app": "cellfeed.consumers.billing.app"}
"""Programs of ours that configurations of before name without ``cellfeed``."""


def _module(place: str, source: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            is_ours = place in _MOVED and importlib.util.find_spec(place.partition(".")[0]) is None
            return importlib.import_module(_MOVED[place] if is_ours else place)
        path = Path(place).resolve()
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise InvalidRequest(f"{source}: there is no file {place}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    except ImportError as error:
        raise InvalidRequest(f"{source}: {error}") from error
    return module
