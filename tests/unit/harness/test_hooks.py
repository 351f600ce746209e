"""The hooks and editors of contributors follow the rules of `make lint`."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]


def test_the_hooks_are_the_commands_of_make_lint() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^lint: .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    asked = set(re.findall(r"\$\(BIN\)/([\w-]+(?: check| format)?)", recipe[1]))
    [local] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in local["hooks"]]
    assert {entry.partition(" --")[0] for entry in entries} == asked


def test_editors_know_the_width_of_lines() -> None:
    text = (ROOT / ".editorconfig").read_text()
    editors = configparser.ConfigParser()
    editors.read_string(text.replace("root = true", ""))
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    assert editors.getint("*", "max_line_length") == ruff["line-length"]
    assert "indent_style = tab" in text.partition("[Makefile]")[2]


def test_the_templates_are_forms_with_questions() -> None:
    forms = [
        yaml.safe_load(path.read_text())
        for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
        if path.name != "config.yml"
    ]
    assert forms
    for form in forms:
        assert form["name"]
        assert form["description"]
        questions = [each for each in form["body"] if each["type"] != "markdown"]
        assert all(each["id"] and each["attributes"]["label"] for each in questions)
