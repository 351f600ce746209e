"""``docs/invariants.md`` has every number that the code cites, and names tests that cite it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "invariants.md").read_text()
FOLDERS = ("store", "bridge", "consumers", "cellfeed", "tests", "benchmarks")
CITED = re.compile(r"\b[IE][1-9][0-9]?\b")
ROWS = re.findall(r"^\| ([IEXCL]\d+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
CONTRACTS = {
    "store/engines/contract/engine.py": "E",
    "store/engines/contract/indexes.py": "X",
    "store/engines/contract/dictionaries.py": "C",
    "bridge/coordination/contract.py": "C",
    "consumers/lake/contract.py": "L",
}


def _sources() -> dict[Path, str]:
    return {
        path: path.read_text()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
    }


def test_every_number_that_the_code_cites_is_on_the_page() -> None:
    on_page = {number for number, *_ in ROWS}
    missing = {
        f"{path.relative_to(ROOT)}: {number}"
        for path, text in _sources().items()
        for number in CITED.findall(text)
        if number not in on_page
    }
    assert missing == set()


@pytest.mark.parametrize(("contract", "letter"), CONTRACTS.items())
def test_every_promise_of_a_contract_is_on_the_page(contract: str, letter: str) -> None:
    section = PAGE.partition(f"`{contract}`")[2].partition("\n## ")[0]
    promised = set(re.findall(rf"^    ({letter}\d+) ", (ROOT / contract).read_text(), re.MULTILINE))
    assert promised
    assert promised == set(re.findall(rf"^\| ({letter}\d+) ", section, re.MULTILINE))


@pytest.mark.parametrize(("number", "promise", "tests"), ROWS)
def test_every_test_that_a_promise_names_exists(number: str, promise: str, tests: str) -> None:
    assert promise.endswith("."), number
    paths = re.findall(r"`([^`]+)`", tests)
    assert paths, number
    for path in paths:
        assert (ROOT / path).is_file(), f"{number}: {path}"


def test_no_source_names_a_document_that_is_not_here() -> None:
    found = [str(path) for path, text in _sources().items() if re.search(r"\bdesign\s+§", text)]
    assert found == []
