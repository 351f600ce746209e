"""Figures with the limit beside them. Each module ``NAME`` (``put_http`` for ``put-http``) has ``figures() -> Iterator[Figure]`` and a docstring that says
what is measured, beside what, and how.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure, a median of interleaved runs. ``ratio`` is figure / beside_figure, where there is something beside it."""

    name: str
    figure: float
    unit: str
    beside: str | None = None
    beside_figure: float | None = None

    @property
    def ratio(self) -> float | None:
        return round(self.figure / self.beside_figure, 3) if self.beside_figure else None

    def as_json(self) -> dict[str, object]:
        """The line of ``--json``."""
        return {
            "name": self.name,
            "figure": _rounded(self.figure),
            "unit": self.unit,
            "beside": self.beside,
            "beside_figure": None if self.beside_figure is None else _rounded(self.beside_figure),
            "ratio": self.ratio,
        }


def benchmark_names() -> dict[str, str]:
    """Every benchmark by name, with the first line of its docstring."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            imported = importlib.import_module(f"{__name__}.{module.name}")
            if hasattr(imported, "figures"):
                found[module.name.replace("_", "-")] = (imported.__doc__ or "").strip().partition("\n")[0]
    return dict(sorted(found.items()))


def run_benchmark(name: str) -> Iterator[Figure]:
    """The figures of one benchmark, as they are measured. Raises KeyError for a name that does not exist."""
    if name not in benchmark_names():
        raise KeyError(name)
    figures: Iterator[Figure] = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").figures()
    return figures


def _rounded(value: float) -> float:
    return round(value, 3 if abs(value) < 100 else 0)
