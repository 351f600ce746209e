"""The metrics of the product, as its source names them, and as its pages list them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("store", "bridge", "consumers", "cellfeed")
PAGES: Final = (ROOT / "docs" / "operate" / "metrics.md", ROOT / "docs" / "clusters.md")

_KINDS: Final = {
    "gauge": "gauge",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "_bytes_by_route": "counter",
    "histogram": "histogram",
    "Histogram": "histogram",
    "HistogramMetricFamily": "histogram",
}
"""By the function that makes a family. A counter's name gets its ``_total`` from the library."""

_OTHER_UNITS: Final = re.compile(
    r"_(ms|millis(econds)?|us|micros(econds)?|ns|minutes|hours|days|k(ilo)?b(ytes)?|m(ega)?b(ytes)?"
    r"|mib|gib|percent|duration|latency|time)(_|$)"
)
_UNITS_OF_HISTOGRAMS: Final = ("_seconds", "_bytes", "_cells")


class Exported(NamedTuple):
    """``name``: a regular expression where a part of it is no literal; without ``_total``."""

    name: str
    kind: str

    def is_called(self, name: str) -> bool:
        """Whether a series' name without ``_bucket``, ``_sum`` and ``_count`` is this one's."""
        total = "_total" if self.kind == "counter" else ""
        return re.fullmatch(self.name + total, name) is not None


@cache
def exported() -> tuple[Exported, ...]:
    """All families that the source makes."""
    found: dict[Exported, None] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if '"cellfeed_' in text and "prometheus_client" in text:
                found |= dict.fromkeys(_of_module(ast.parse(text), str(path)))
    return tuple(found)


def _of_module(tree: ast.Module, place: str) -> list[Exported]:
    found = []
    names = 0
    for node in ast.walk(tree):
        text = _name(node)
        names += text is not None
        if isinstance(node, ast.Call) and node.args and (name := _name(node.args[0])):
            maker = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if (kind := _KINDS.get(maker)) is not None:
                found.append(Exported(name, kind))
        if isinstance(node, ast.Tuple) and node.elts and (name := _name(node.elts[0])):
            found.append(Exported(name, _kind_of_tuple(node, tree, place)))
    assert names == len(found), f"{place} has a metric in a form that this test does not know"
    return found


def _kind_of_tuple(node: ast.Tuple, tree: ast.Module, place: str) -> str:
    """Of a family whose name stands in a table: by the one maker that its loop calls."""
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and any(each is node for each in ast.walk(loop.iter)):
            for call in ast.walk(loop):
                if isinstance(call, ast.Call):
                    kind = _KINDS.get(getattr(call.func, "id", ""))
                    if kind is not None:
                        return kind
    raise AssertionError(f"{place}: no maker of a metric in the loop over its names")


def _name(node: ast.AST) -> str | None:
    """A metric's name, as a regular expression; None where the node is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
        return text if re.fullmatch(r"cellfeed_[a-z_]*[a-z]", text) else None
    if isinstance(node, ast.JoinedStr):
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and re.fullmatch(r"cellfeed_[a-z_]+", str(first.value)):
            return "".join(
                str(part.value) if isinstance(part, ast.Constant) else r"[a-z_]+"
                for part in node.values
            )
    return None


def listed(text: str | None = None) -> list[str]:
    """The metrics in the tables of the pages, or of one line of them."""
    texts = [page.read_text() for page in PAGES] if text is None else [text]
    rows = re.compile(r"^\| `(cellfeed_\w+)` \|", re.MULTILINE)
    return [name for each in texts for name in rows.findall(each)]


def why_not(metric: Exported) -> str:
    """Why a name is against the rule; empty where it follows it. ``cellfeed_`` and the part come
    first; base units last (seconds, bytes), and nothing but words in lower case; ``_total`` is of
    counters alone, and written by the library."""
    name = metric.name.replace("[a-z_]+", "any")
    if not re.fullmatch(r"cellfeed(_[a-z]+){2,}", name):
        return "it is not cellfeed_<part>_<words>, in lower case"
    if _OTHER_UNITS.search(name):
        return "its unit is not a base unit"
    if name.endswith(("_total", "_count", "_sum", "_bucket", "_info")):
        return "that ending is the library's"
    if metric.kind == "histogram" and not name.endswith(_UNITS_OF_HISTOGRAMS):
        return "a histogram ends with its unit"
    return ""
