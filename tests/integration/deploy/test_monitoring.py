"""The alert rules and dashboards of ``deploy/monitoring``: Prometheus' own tool loads them, every
metric in them exists with that type, and every alert has a page with the steps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.alert_rules import rules
from tests.support.command_tree import cli, verbs
from tests.support.metric_names import Exported, exported
from tests.support.promtool import ROOT, RULES, promtool

pytestmark = pytest.mark.integration

ALERTS = ROOT / "docs" / "operate" / "alerts"
DASHBOARDS = sorted((RULES.parent / "dashboards").glob("*.json"))
OF_OTHERS = {"up", "ALERTS"} | {
    f"process_{each}" for each in ("resident_memory_bytes", "cpu_seconds_total", "open_fds")
}
"""Of Prometheus itself, and of its client library."""

_NAME = re.compile(r"\b(cellfeed_\w+|process_\w+|up)\b(?=[{\[ )]|$)")
_ENDINGS = ("_bucket", "_sum", "_count")


def _panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            yield path.name, panel


def _expressions() -> dict[str, str]:
    """By their place."""
    found = {f"{each.alert} of {RULES.name}": each.expr for each in rules()}
    for name, panel in _panels():
        for target in panel.get("targets", ()):
            found[f"{panel['title']!r} of {name}, {target['refId']}"] = target["expr"]
    return found


def test_the_rules_are_loaded_by_prometheus() -> None:
    said = promtool("check", "rules", str(RULES))
    assert said.returncode == 0, said.stderr
    assert f"{len(rules())} rules found" in said.stdout


def test_every_expression_of_a_dashboard_is_promql(tmp_path: Path) -> None:
    plain = {
        place: text.replace("$__rate_interval", "5m").replace("$job", "cellfeed")
        for place, text in _expressions().items()
    }
    recorded = [{"record": f"panel:{n}", "expr": text} for n, text in enumerate(plain.values())]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    said = promtool("check", "rules", str(file))
    assert said.returncode == 0, said.stderr


# --- names ----------------------------------------------------------------------------------------


def wrong_names(expression: str, known: tuple[Exported, ...]) -> list[str]:
    """The metrics of an expression that no process exports in that form."""
    wrong = []
    for name in _NAME.findall(expression):
        base = next((name.removesuffix(each) for each in _ENDINGS if name.endswith(each)), None)
        of_histogram = [each for each in known if base and each.is_called(base)]
        found = [each for each in known if each.is_called(name) and each.kind != "histogram"]
        found += [each for each in of_histogram if each.kind == "histogram"]
        rated = re.search(rf"(rate|increase)\({name}", expression) is not None
        kinds = {each.kind for each in found}
        if name.startswith("process_"):
            kinds = {"counter" if name.endswith("_total") else "gauge"}
        if name not in OF_OTHERS and not kinds:
            wrong.append(f"{name} is not exported")
        elif rated and "gauge" in kinds:
            wrong.append(f"{name} is a gauge: it has no rate")
        elif not rated and kinds & {"counter", "histogram"}:
            wrong.append(f"{name} is a counter: it is shown by its rate")
    return wrong


def test_every_metric_of_rules_and_dashboards_is_exported_with_that_type() -> None:
    expressions = _expressions()
    assert len(expressions) > 60
    found = {place: wrong_names(text, exported()) for place, text in expressions.items()}
    assert {place: wrong for place, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("sum(cellfeed_http_request_total)", "is not exported"),
        ("rate(cellfeed_stuck_parts[5m])", "is a gauge"),
        ("cellfeed_http_requests_total > 5", "is a counter"),
        ("rate(cellfeed_http_requests_bucket[5m])", "is not exported"),
        ("cellfeed_lake_rows", "is not exported"),
    ],
)
def test_a_name_that_is_not_exported_so_is_found(expression: str, why: str) -> None:
    [wrong] = wrong_names(expression, exported())
    assert why in wrong


def test_panels_have_ids_of_their_own_a_description_of_units_and_do_not_overlap() -> None:
    assert len(DASHBOARDS) == 4
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        assert board["uid"] == path.stem
        panels = board["panels"]
        assert len({each["id"] for each in panels}) == len(panels)
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= 24
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken, panel["title"]
            taken |= cells
            if panel["type"] != "row":
                assert panel["datasource"]["uid"] == "${datasource}"
                assert panel["fieldConfig"]["defaults"]["unit"]


# --- pages ----------------------------------------------------------------------------------------


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    pages = {path.relative_to(ROOT).as_posix() for path in ALERTS.glob("*.md")}
    pages.remove("docs/operate/alerts/README.md")
    assert {each.page for each in rules()} == pages
    assert {each.labels["severity"] for each in rules()} == {"critical", "warning", "info"}
    listed = (ALERTS / "README.md").read_text()
    for rule in rules():
        [line] = [each for each in listed.splitlines() if f"`{rule.alert}`" in each]
        assert f"({Path(rule.page).name})" in line
    for page in pages:
        text = (ROOT / page).read_text()
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Look", "Do"], page
        title = text.partition("\n")[0].removeprefix("# ")
        assert f"[{title}]({Path(page).name})" in listed


def test_every_command_of_a_page_exists() -> None:
    known = {" ".join(each) for each in verbs(cli())}
    named = {
        (path.stem, words)
        for path in ALERTS.glob("*.md")
        for words in re.findall(r"`cellfeed ([^`]+)`", path.read_text())
    }
    assert len(named) > 20
    for page, words in named:
        first, *rest = words.split()
        assert first in known or f"{first} {rest[0]}" in known, (page, words)
