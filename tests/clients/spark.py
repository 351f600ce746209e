"""Spark from PyPI, and its Kafka source from Maven Central: fetched once for each state of
``examples/spark``."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Final

from tests.clients.grid.builds import built, fetch, needs
from tests.support.cli_instance import ROOT

FOLDER: Final = ROOT / "examples" / "spark"
_FETCH_TIMEOUT_S: Final = 540.0
"""PySpark is 450 MB, and pip makes a wheel of it."""


@cache
def pyspark() -> Path:
    """The folder of the packages; its ``bin`` has ``spark-submit``. Raises Unavailable. Maven's own
    repository has the jars then."""
    needs("java", "Java 17 (`make services` installs one on Debian)")
    needs("mvn", "Maven (`make services` installs it on Debian)")

    def build(directory: Path) -> None:
        jars = "dependency:copy-dependencies"
        fetch(["mvn", "--batch-mode", "-q", jars, "-DincludeScope=runtime"], directory)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        requirements = ["--require-hashes", "--no-deps", "-r", "requirements.txt"]
        into = ["--no-compile", "--target", "packages"]
        fetch([*pip, *into, *requirements], directory, _FETCH_TIMEOUT_S)

    return built("spark", FOLDER, build) / "packages"
