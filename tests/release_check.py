"""Checks a release, and makes one: `make release-check`, `make release`.

Builds the sdist from the committed files, the wheel from the sdist, and checks both with twine and
check-wheel-contents. Each Python of 3.11 to 3.14 on this machine gets the wheel in an environment
of its own, with the dependencies from the package index. It prints the version and runs the demo in
an empty directory. Where uv is there, `uvx --from <wheel> cellfeed demo` runs as well.

`make release-check` throws its archives away, so it can be run at any time. It ends with a list
of the things that a release needs and this one lacks (`tests/release_terms.py`). `make release`
refuses to build while anything is on that list, and leaves the archives in `dist/`.

Exit code 1 when anything fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from cellfeed import __version__
from tests.release_terms import (
    URLS,
    missing_for_a_release,
    with_links,
    with_urls,
    wrong_in,
)

ROOT: Final = Path(__file__).parents[1]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
STEP_TIMEOUT_S: Final = 900
"""For one command: an installation of everything, or a demo, on a busy machine."""


def main() -> int:
    is_release = sys.argv[1:] == ["--release"]
    urls = {label: os.environ.get(variable, "") for label, variable in URLS.items()}
    changelog = (ROOT / "CHANGELOG.md").read_text()
    missing = missing_for_a_release(changelog, __version__, urls, _changed_files())
    pythons = {version: found for version in PYTHONS if (found := _python(version))}
    missing += [
        f"Python {version} on this machine" for version in PYTHONS if version not in pythons
    ]
    if is_release and missing:
        sys.exit("no release without:\n" + "\n".join(f"- {each}" for each in missing))
    with tempfile.TemporaryDirectory(prefix="cellfeed-release-") as name:
        place = Path(name)
        wheel, sdist = _built(place, urls if is_release else {})
        if wrong := wrong_in(wheel, urls if is_release else {}):
            sys.exit("\n".join(wrong))
        failed = [
            version for version, python in pythons.items() if not _works(version, python, wheel)
        ]
        if not failed and not _works_in_uvx(wheel, place):
            failed = ["of uvx"]
        if failed:
            print(f"failed on Python {', '.join(failed)}", flush=True)
            return 1
        print(f"the archives are sound on Python {', '.join(pythons)}", flush=True)
        if is_release:
            (ROOT / "dist").mkdir(exist_ok=True)
            kept = [str(shutil.copy(each, ROOT / "dist" / each.name)) for each in (wheel, sdist)]
            print(f"to publish them: twine upload {' '.join(kept)}", flush=True)
    for each in missing:
        print(f"a release needs {each}", flush=True)
    return 0


def _built(place: Path, urls: dict[str, str]) -> tuple[Path, Path]:
    """The wheel and the sdist of the last commit, checked. ``urls`` of the project by label."""
    source, dist = place / "source", place / "dist"
    source.mkdir()
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    for folder in ("tests", "benchmarks"):
        shutil.rmtree(source / folder, ignore_errors=True)
    settings = source / "pyproject.toml"
    settings.write_text(with_urls(settings.read_text(), urls))
    readme = source / "README.md"
    readme.write_text(with_links(readme.read_text(), urls))
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist)]
    _run([*build, str(source)], source)
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    _run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)], place)
    _run([sys.executable, "-m", "check_wheel_contents", str(wheel)], place)
    return wheel, sdist


def _changed_files() -> list[str]:
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [line[3:] for line in status.splitlines()]


def _python(version: str) -> str | None:
    """One that runs: a version manager has names of Pythons that it does not have."""
    for folder in os.get_exec_path():
        found = shutil.which(f"python{version}", path=folder)
        if found and not subprocess.run([found, "-c", ""], capture_output=True).returncode:
            return found
    return None


def _works(version: str, python: str, wheel: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix=f"cellfeed-{version}-") as name:
        environment, empty = Path(name) / "venv", Path(name) / "empty"
        empty.mkdir()
        binaries = environment / "bin"
        try:
            _run([python, "-m", "venv", str(environment)], empty)
            _run([str(binaries / "pip"), "install", "--quiet", f"{wheel}[all]"], empty)
            _run([str(binaries / "pip"), "check"], empty)
            _run([str(binaries / "cellfeed"), "--version"], empty)
            _run([str(binaries / "cellfeed"), "demo"], empty)
        except subprocess.SubprocessError as error:
            print(f"Python {version}: {error}", flush=True)
            return False
    return True


def _works_in_uvx(wheel: Path, place: Path) -> bool:
    """As somebody does who has uv alone; True where it is not there."""
    if (uvx := shutil.which("uvx")) is None:
        print("uvx is not on this machine: not checked", flush=True)
        return True
    empty = place / "empty"
    empty.mkdir()
    try:
        _run([uvx, "--from", f"{wheel}[all]", "cellfeed", "demo"], empty)
    except subprocess.SubprocessError as error:
        print(f"uvx: {error}", flush=True)
        return False
    return True


def _run(command: list[str], cwd: Path) -> None:
    print("$", " ".join(command), flush=True)
    subprocess.run(command, cwd=cwd, check=True, timeout=STEP_TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())
