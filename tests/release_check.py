"""Checks a release before it is published: `make release-check`.

Builds the sdist from the committed files, the wheel from the sdist, and checks both with twine and
check-wheel-contents. Each Python of 3.11 to 3.14 on this machine gets the wheel in an environment
of its own, with the dependencies from the package index. It prints the version and runs the demo in
an empty directory. A Python that is not there is named. Exit code 1 when anything fails, or when
the changelog does not have the version.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from cellfeed import __version__

ROOT: Final = Path(__file__).parents[1]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
DEMO_TIMEOUT_S: Final = 300


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="cellfeed-release-") as name:
        place = Path(name)
        if f"## {__version__}" not in (ROOT / "CHANGELOG.md").read_text():
            sys.exit(
                f"CHANGELOG.md has no heading for version {__version__}: give 'Unreleased' its name"
            )
        source = place / "source"
        source.mkdir()
        archive = subprocess.run(
            ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
        for folder in ("tests", "benchmarks"):
            shutil.rmtree(source / folder, ignore_errors=True)
        dist = place / "dist"
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist)]
        _run([*build, str(source)], source)
        files = sorted(str(path) for path in dist.iterdir())
        _run([sys.executable, "-m", "twine", "check", "--strict", *files], place)
        [wheel] = dist.glob("*.whl")
        _run([sys.executable, "-m", "check_wheel_contents", str(wheel)], place)
        failed = [version for version in PYTHONS if not _works(version, wheel, place)]
    print(f"failed on Python {', '.join(failed)}" if failed else "the release is sound", flush=True)
    return 1 if failed else 0


def _works(version: str, wheel: Path, place: Path) -> bool:
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], check=False).returncode:
        print(f"Python {version} is not on this machine: not checked", flush=True)
        return True
    environment, empty = place / f"venv-{version}", place / f"empty-{version}"
    empty.mkdir()
    binaries = environment / "bin"
    try:
        _run([python, "-m", "venv", str(environment)], place)
        _run([str(binaries / "pip"), "install", "--quiet", f"{wheel}[all]"], place)
        _run([str(binaries / "cellfeed"), "--version"], empty)
        _run([str(binaries / "cellfeed"), "demo"], empty)
    except subprocess.SubprocessError as error:
        print(f"Python {version}: {error}", flush=True)
        return False
    return True


def _run(command: list[str], cwd: Path) -> None:
    print("$", " ".join(command), flush=True)
    subprocess.run(command, cwd=cwd, check=True, timeout=DEMO_TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())
