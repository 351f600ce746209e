"""Environments of a user: the wheel, built as a release is, and chosen packages beside it."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def build_wheel(source: Path, built: Path) -> Path:
    """The wheel, built from the sdist of a copy of the tree, so that no build directory is left in
    it. Both directories are empty."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    for name in names or [str(path.relative_to(ROOT)) for path in _without_git()]:
        if name.startswith(("tests/", "benchmarks/")) or not (ROOT / name).exists():
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            (source / name).symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), str(source)]
    done = subprocess.run(
        command, cwd=source, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(built.glob("cellfeed-*.whl"))


def install_wheel(wheel: Path, environment: Path) -> Path:
    """Makes the environment, with the wheel and nothing of the checkout; gives its directory of
    packages."""
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    install = ["pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run(
        [sys.executable, "-m", *install, str(wheel)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


def needed_by(found: Distribution, extras: Iterable[str] = ()) -> set[str]:
    """The distributions that pip would install for it, looked up in this environment."""
    needed, waiting = set[str](), [(found, frozenset(extras))]
    while waiting:
        found, chosen = waiting.pop()
        for text in found.requires or ():
            wanted = Requirement(text)
            name = _normal(wanted.name)
            if name not in needed and (
                wanted.marker is None
                or any(wanted.marker.evaluate({"extra": each}) for each in ("", *chosen))
            ):
                needed.add(name)
                waiting.append((distribution(name), frozenset(wanted.extras)))
    return needed


def installed_in(site: Path) -> Distribution:
    """The wheel that :func:`install_wheel` put there."""
    [found] = distributions(name="cellfeed", path=[str(site)])
    return found


def link_packages(names: Iterable[str], site: Path) -> int:
    """Links this environment's packages of that name into another one; gives their bytes."""
    size = 0
    for name in names:
        found = distribution(name)
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            if ".." in file.parts or not path.is_file():
                continue
            size += path.stat().st_size if path.suffix != ".pyc" else 0
            top = site / file.parts[0]
            if not top.exists():
                top.symlink_to(Path(str(found.locate_file(file.parts[0]))))
    return size


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _without_git() -> Iterator[Path]:
    hidden = {".venv", ".git", "build", "dist"}
    for path in ROOT.rglob("*"):
        if (path.is_file() or path.is_symlink()) and not hidden & set(path.relative_to(ROOT).parts):
            yield path
