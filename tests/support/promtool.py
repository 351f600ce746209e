"""Prometheus' own tool: it checks rules and expressions, and tells whether series fire an alert."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "monitoring" / "alerts.yaml"
_TIMEOUT_S: Final = 120
_AT: Final = "2h"
"""How long a series lasts before it is looked whether it fired."""


class Series(NamedTuple):
    """A series as it was scraped: its name, its labels, and its values a minute apart in promtool's
    notation (``0+1x120``)."""

    name: str
    labels: Mapping[str, str]
    values: str

    def __str__(self) -> str:
        given = ", ".join(f"{name}={_quoted(value)}" for name, value in self.labels.items())
        return f"{self.name}{{{given}}}"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it. Skips the test, with the reason, where it is not there."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool on this machine: `make services` installs it on Debian")
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )


def fired(series: Iterable[Series], alert: str) -> list[dict[str, str]]:
    """The labels of each instance of ``alert`` that these series fire, after two hours of them."""
    # promtool compares. An alert that is wanted and does not fire has it print those that do.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test.yaml"
        impossible = {"exp_labels": {"nobody": "has this"}, "exp_annotations": {}}
        case: dict[str, Any] = {
            "interval": "1m",
            "input_series": [{"series": str(each), "values": each.values} for each in series],
            "alert_rule_test": [{"eval_time": _AT, "alertname": alert, "exp_alerts": [impossible]}],
        }
        file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [case]}))
        said = promtool("test", "rules", str(file))
    assert said.returncode == 1, said.stdout + said.stderr
    _, found, got = said.stderr.partition("got:[")
    assert found, said.stderr
    return [_labels(line) for line in got.splitlines() if "Labels:{" in line]


def _labels(line: str) -> dict[str, str]:
    """Of a line ``Labels:{alertname="A", job="cellfeed"}``."""
    pairs = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', line)
    return {name: json.loads(value) for name, value in pairs}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
