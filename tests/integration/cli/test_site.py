"""The site of the guides: it is built without a warning, its reference has all that there is, and a
link that leads nowhere fails the build."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cellfeed
import cellfeed.testing
from cellfeed.config.json_schema import config_schema
from cellfeed.store.http.server.reads import READ_ROUTES
from tests.support.command_tree import cli, verbs

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("site")]

ROOT = Path(__file__).parents[3]
BUILD_S = 180


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs`."""
    options = ["--fail-on-warning", "--fresh-env", "--quiet", "-c", str(ROOT / "docs" / "site")]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(source), str(site)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = build(ROOT, directory)
    assert done.returncode == 0, done.stderr
    return directory


def text(site: Path, page: str) -> str:
    """A page without its marks."""
    return html.unescape(re.sub(r"<[^>]+>", "", (site / f"{page}.html").read_text()))


def test_every_guide_is_on_the_site_and_found_by_its_search(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    for page in ("README", "ARCHITECTURE", "CONTRIBUTING"):
        assert f'"{page}"' in index
    guides = [
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if "site" not in path.parts
    ]
    assert len(guides) > 30
    assert [page for page in guides if f'"{page}"' not in index] == []
    assert (site / "search.html").exists()
    assert "README.html" in (site / "index.html").read_text()


def test_the_reference_has_every_command_with_its_options(site: Path) -> None:
    page = text(site, "docs/reference/commands")
    names = [" ".join(("cellfeed", *verb)) for verb in verbs(cli()) if verb != ("run",)]
    assert [name for name in names if name not in page] == []
    assert "--readers-ahead" in page


def test_the_reference_has_every_field_of_the_configuration(site: Path) -> None:
    page = text(site, "docs/reference/configuration")
    for name, schema in config_schema()["$defs"].items():
        heading = f"\n{name}\N{PILCROW SIGN}"
        assert heading in page
        section = page[page.index(heading) :]
        assert [field for field in schema["properties"] if f"\n{field}\n" not in section] == []


def test_the_reference_has_every_route_of_a_worker(site: Path) -> None:
    page = text(site, "docs/reference/http")
    paths = {re.sub(r":\w+}", "}", path) for route in READ_ROUTES for path in route.paths}
    paths |= {"/v1/{datastore}/cell", "/v1/{datastore}/cells", "/health/ready", "/metrics"}
    assert [path for path in sorted(paths) if path not in page] == []


@pytest.mark.parametrize("module", [cellfeed, cellfeed.testing], ids=lambda each: each.__name__)
def test_the_reference_has_every_public_name(site: Path, module: object) -> None:
    page = text(site, "docs/reference/python")
    names: list[str] = module.__all__  # type: ignore[attr-defined]
    assert [name for name in names if name not in page and name != "__version__"] == []


PLANTED = {
    "[gone](nowhere.md)": "nowhere",
    "[gone](SECURITY.md#no-such-heading)": "no-such-heading",
    "<!-- generated: nothing -->": "nothing",
    "```{eval-rst}\n.. autoclass:: cellfeed.NoSuchClass\n```": "NoSuchClass",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every page with its heading alone: a site that is built without a warning."""
    directory = tmp_path_factory.mktemp("pages")
    folders = [
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("examples/*.md"),
        *ROOT.glob("tests/*.md"),
    ]
    for path in [*ROOT.glob("*.md"), *folders]:
        page = directory / path.relative_to(ROOT)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("# A page\n")
    sound = build(directory, tmp_path_factory.mktemp("site"))
    assert sound.returncode == 0, sound.stderr
    return directory


@pytest.mark.parametrize("planted", PLANTED)
def test_a_page_that_names_a_missing_file_fails_the_build(
    pages: Path, tmp_path: Path, planted: str
) -> None:
    (pages / "CHANGELOG.md").write_text(f"# A page\n\n{planted}\n")
    done = build(pages, tmp_path)
    assert done.returncode != 0
    assert PLANTED[planted] in done.stderr
