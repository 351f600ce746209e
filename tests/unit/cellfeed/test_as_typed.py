"""Commands that are shown can be typed where they are shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cellfeed.cli.as_typed import program, run_dir_option


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program in a folder of its own, beside the current one's files."""
    path = tmp_path / ".venv" / "bin" / "cellfeed"
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "demo"])
    return path


def test_a_program_that_path_does_not_lead_to_is_shown_by_its_path(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == ".venv/bin/cellfeed"
    monkeypatch.setenv("PATH", str(installed.parent))
    assert program() == "cellfeed"
    monkeypatch.setattr(sys, "argv", ["/usr/lib/cellfeed/__main__.py"])
    assert program() == "cellfeed"


def test_the_run_directory_is_named_unless_commands_find_it_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CELLFEED_RUN_DIR", raising=False)
    assert run_dir_option(tmp_path / "run") == ""
    assert run_dir_option(tmp_path / "demo-run") == " --run-dir demo-run"
    assert run_dir_option(tmp_path / "of others" / "run") == " --run-dir 'of others/run'"
    assert run_dir_option(Path("/srv/run")) == " --run-dir /srv/run"
    monkeypatch.setenv("CELLFEED_RUN_DIR", "/srv/run")
    assert run_dir_option(Path("/srv/run")) == ""
