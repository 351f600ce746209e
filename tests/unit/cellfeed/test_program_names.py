"""A configuration of before names the model program without ``cellfeed``, and still finds it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_LOAD = """
import json, sys
from cellfeed.bridge.triggers.loading import load_program
[trigger] = load_program(sys.argv[1], json.loads(sys.argv[2]))
print(trigger.group, trigger.function.__module__)
"""


@pytest.mark.integration
@pytest.mark.parametrize("name", ["consumers.billing.app", "cellfeed.consumers.billing.app"])
def test_billing_is_found_by_its_old_name_and_by_its_new_one(name: str, tmp_path: Path) -> None:
    settings = json.dumps({"billing_dir": str(tmp_path)})
    command = [sys.executable, "-I", "-c", _LOAD, f"{name}:program", settings]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("cellfeed.consumers.billing.app\n"), done.stdout


@pytest.mark.integration
def test_a_services_own_module_of_that_name_stays_the_services(tmp_path: Path) -> None:
    place = tmp_path / "consumers" / "billing"
    place.mkdir(parents=True)
    (place / "app.py").write_text(
        "from cellfeed import trigger\n\n@trigger(column='BASE', group='own')\n"
        "def program(row_key): ...\n"
    )
    command = [sys.executable, "-c", _LOAD, "consumers.billing.app:program", "{}"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()[-1]) == (0, "consumers.billing.app"), done.stderr
