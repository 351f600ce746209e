"""Every metric that the product exports is in an operator's page, and no page invents one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("store", "bridge", "consumers", "cellfeed")
PAGES = [ROOT / "docs" / "operate" / "watch.md", ROOT / "docs" / "clusters.md"]
_MAKERS = re.compile(r"(Gauge|Counter|Histogram|Summary)(MetricFamily)?")


def _names() -> Iterator[str]:
    """Names of metrics, as regular expressions: a part that is not literal is any word."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if '"cellfeed_' in text else ():
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                maker = getattr(node.func, "id", getattr(node.func, "attr", ""))
                name = node.args[0]
                if not _MAKERS.fullmatch(maker):
                    continue
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield re.escape(name.value)
                elif isinstance(name, ast.JoinedStr):
                    yield "".join(
                        re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"\w+"
                        for part in name.values
                    )


def test_every_metric_is_in_a_page_and_every_one_in_a_page_is_exported() -> None:
    names = {name for name in _names() if name.startswith("cellfeed_")}
    assert len(names) > 12
    listed = {
        name
        for page in PAGES
        for name in re.findall(r"^\| `(cellfeed_\w+)` \|", page.read_text(), re.MULTILINE)
    }
    patterns = [re.compile(f"{name}(_total)?") for name in names]
    assert [each for each in patterns if not any(map(each.fullmatch, listed))] == []
    assert [each for each in listed if not any(name.fullmatch(each) for name in patterns)] == []
