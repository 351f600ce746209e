"""No release goes out without the project's addresses and its changelog."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.release_terms import FILES, URLS, missing_for_a_release, with_links, with_urls, wrong_in

ROOT = Path(__file__).parents[3]
GOOD = {label: f"https://cells.example.net.test/{label.lower()}" for label in URLS}


CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-12-01\n\n- All.\n"


def test_a_whole_checkout_with_every_address_lacks_nothing() -> None:
    assert missing_for_a_release(CHANGELOG, "1.2.3", GOOD, []) == []


@pytest.mark.parametrize("label", URLS)
@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://cells.test/a",
        "cells.test",
        "https://localhost/a",
        "https://example.org/a",
        "https://docs.example/a",
        'https://cells.test/"a',
    ],
)
def test_an_address_that_nobody_could_open_is_refused(label: str, url: str) -> None:
    [missing] = missing_for_a_release(CHANGELOG, "1.2.3", {**GOOD, label: url}, [])
    assert missing.startswith(f"{URLS[label]}=")


def test_a_version_without_its_heading_and_a_changed_file_are_named() -> None:
    later = CHANGELOG.replace("1.2.3", "1.2.2")
    heading, changed = missing_for_a_release(later, "1.2.3", GOOD, ["a.py"])
    assert "## 1.2.3" in heading
    assert "a.py" in changed


def test_the_addresses_and_links_of_a_release_are_its_own() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert "urls" not in tomllib.loads(project)["project"], "nobody vouches for addresses here"
    assert tomllib.loads(with_urls(project, GOOD))["project"]["urls"] == GOOD
    assert with_urls(project, {}) == project
    readme = "[a](docs/a.md) [b](https://b.test) [c](#c) ![d](docs/d.svg)"
    base = GOOD[FILES]
    assert with_links(readme, GOOD) == (
        f"[a]({base}/docs/a.md) [b](https://b.test) [c](#c) ![d]({base}/docs/d.svg)"
    )
    assert with_links(readme, {}) == readme


def test_a_wheel_without_its_addresses_or_changelog_is_found(tmp_path: Path) -> None:
    wheel = tmp_path / "cells.whl"

    def built(names: dict[str, str]) -> list[str]:
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in names.items():
                archive.writestr(f"cells-1.dist-info/{name}", text)
        return wrong_in(wheel, GOOD)

    urls = "".join(f"Project-URL: {label}, {url}\n" for label, url in GOOD.items())
    changelog = {"licenses/CHANGELOG.md": "all"}
    assert built({"METADATA": f"Name: cells\n{urls}\nText.", **changelog}) == []
    assert len(built({"METADATA": "Name: cells\n\nText.", **changelog})) == len(URLS)
    assert built({"METADATA": f"Name: cells\n{urls}\nText."}) == [
        "the wheel has no licenses/CHANGELOG.md"
    ]
    assert built({"METADATA": f"Name: cells\n{urls}\n[a](docs/a.md)", **changelog}) == [
        "the wheel's description has links to files beside it"
    ]
