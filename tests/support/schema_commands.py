"""Schemas of taxi trips, and `cellfeed schemas` in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from cellfeed.cli.main import command_line

FARE = {"name": "fare", "type": "long"}


TIP = {"name": "tip", "type": "long", "default": 0}


def write_schema(directory: Path, *fields: Mapping[str, Any], name: str = "trip.avsc") -> Path:
    file = directory / name
    file.write_text(json.dumps({"type": "record", "name": "Trip", "fields": fields}))
    return file


def invoke(run_dir: Path, *words: str, code: int = 0) -> list[dict[str, Any]]:
    done = CliRunner().invoke(
        command_line("schemas"), ["schemas", *words, "--run-dir", str(run_dir), "--json"]
    )
    assert done.exit_code == code, (done.output, done.exception)
    return [json.loads(line) for line in done.stdout.splitlines()]
