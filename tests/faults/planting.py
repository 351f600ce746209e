"""Planting defects in the product while a fault run works: in this process, or in each process that
the run starts."""

from __future__ import annotations

import itertools
import os
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

Wrapped = Callable[..., Any]

ROOT: Final = Path(__file__).parents[2]
VARIABLE: Final = "CELLFEED_TESTS_PLANT"
_SITE: Final = Path(__file__).parent / "plant_site"


class Plant(NamedTuple):
    """``what`` is wrong while ``where`` (a class or a module, and a name in it) is replaced by
    ``wrap(the real method)``; the run ``finds`` one of these.

    A text ``module:Class`` in the place of the class plants in every process that the run starts,
    and not in the run's own, which judges.
    """

    what: str
    where: tuple[Any, str]
    wrap: Callable[[Wrapped], Wrapped]
    finds: frozenset[str]

    @property
    def is_in_processes(self) -> bool:
        return isinstance(self.where[0], str)


def plant_of(
    what: str, owner: Any, name: str, wrap: Callable[[Wrapped], Wrapped], *finds: str
) -> Plant:
    return Plant(what, (owner, name), wrap, frozenset(finds))


def every(count: int, wrong: Wrapped) -> Callable[[Wrapped], Wrapped]:
    """Every so many calls are answered by ``wrong(real, *call)``."""

    def wrap(real: Wrapped) -> Wrapped:
        numbers = itertools.count(1)

        def call(*given: Any, **how: Any) -> Any:
            return wrong(real, *given, **how) if next(numbers) % count == 0 else real(*given, **how)

        return call

    return wrap


def instead(other: Wrapped) -> Callable[[Wrapped], Wrapped]:
    return lambda _: other


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """The product has the defect until the context ends."""
    owner, name = plant.where
    if not plant.is_in_processes:
        with patch.object(owner, name, plant.wrap(getattr(owner, name))):
            yield
        return
    path = os.pathsep.join([str(_SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with patch.dict(os.environ, {VARIABLE: plant.what, "PYTHONPATH": path}):
        yield


def plant_here() -> None:
    """Plants the bug that the environment of this process names."""
    from tests.faults.process_plants import PROCESS_PLANTS

    wanted = os.environ[VARIABLE]
    plant = next(each for each in PROCESS_PLANTS.values() if each.what == wanted)
    place, name = plant.where
    owner = pkgutil.resolve_name(place)
    setattr(owner, name, plant.wrap(getattr(owner, name)))
