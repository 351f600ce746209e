"""Installs the tools, as their lock files say: once for each state of these, beside the builds of
the grid's drivers."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Final

from tests.clients.grid.builds import built, fetch, needs, npm_ci

TOOLS: Final = Path(__file__).parent


@cache
def python_tools() -> Path:
    """A folder for ``PYTHONPATH``. The lock file comes from ``requirements.in`` as that of the
    project does from ``pyproject.toml`` (``make lock``)."""

    def build(directory: Path) -> None:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
        ]
        fetch(
            [
                *pip,
                "--require-hashes",
                "--no-deps",
                "--target",
                "packages",
                "-r",
                "requirements.lock",
            ],
            directory,
        )

    return built("python-tools", TOOLS / "python", build) / "packages"


@cache
def node_tools() -> Path:
    """A folder with ``node_modules``."""
    needs("npm", "Node.js 20 or newer with npm (the packages nodejs and npm of a current Debian)")
    return built("node-tools", TOOLS / "node", npm_ci)


def pinned() -> dict[str, str]:
    """Each tool's version."""
    python = re.findall(
        r"^(\S+)==(\S+)$", (TOOLS / "python" / "requirements.in").read_text(), re.MULTILINE
    )
    node = re.findall(r'"([\w-]+)": "([\d.]+)"', (TOOLS / "node" / "package.json").read_text())
    return dict(python + node)
