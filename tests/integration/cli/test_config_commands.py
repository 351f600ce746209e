"""``cellfeed config check|show|schema``."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from cellfeed.config.model import Config
from tests.support.cli_instance import cellfeed

pytestmark = [pytest.mark.integration]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cellfeed.yaml"
    path.write_text(
        "datastore:\n  name: rides\n  clusters:\n"
        "  - {name: c1, nodes: [{name: a, url: 'mysql://cellfeed:hunter2@127.0.0.1:3311'}]}\n"
        "workers: [{name: one, port: 0}, {name: two, port: 0}]\n"
    )
    return path


def test_config_check_lists_the_processes_and_starts_none(file: Path) -> None:
    said = cellfeed("config", "check", str(file))
    assert said.returncode == 0, said.stderr
    assert said.stdout == (
        f"{file} is well: datastore rides of 16 shards in clusters c1; processes: 2 worker,"
        " 1 gateway\n"
    )
    found = json.loads(cellfeed("config", "check", str(file), "--json").stdout)
    assert [each["name"] for each in found["processes"]] == ["one", "two", "gateway"]
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("text", "says"),
    [("workerz: []", "did you mean 'workers'?"), ("[", "not YAML"), ("a: 1\na: 2", "twice")],
)
def test_check_refuses_in_one_line(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    said = cellfeed("config", "check", str(file))
    assert said.returncode == 2
    assert says in said.stderr
    assert said.stderr.count("\n") == 1


def test_show_fills_in_defaults_and_hides_passwords(file: Path) -> None:
    said = cellfeed("config", "show", "--config", str(file))
    assert said.returncode == 0, said.stderr
    assert "hunter2" not in said.stdout
    shown = yaml.safe_load(said.stdout)
    assert shown["datastore"]["clusters"][0]["nodes"][0]["url"] == (
        "mysql://cellfeed:***@127.0.0.1:3311"
    )
    assert shown["gateways"][0]["port"] == 9092
    assert msgspec.convert(shown, Config).datastore.name == "rides"
    assert json.loads(cellfeed("config", "show", "--config", str(file), "--json").stdout) == shown


def test_show_without_an_instance_names_the_missing_argument(tmp_path: Path) -> None:
    said = cellfeed("config", "show", "--run-dir", str(tmp_path))
    assert said.returncode == 1
    assert "--config" in said.stderr


def test_the_schema_takes_the_file_and_refuses_an_unknown_key(file: Path) -> None:
    schema = json.loads(cellfeed("config", "schema").stdout)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(yaml.safe_load(file.read_text()))
    assert list(validator.iter_errors({"workerz": []}))
