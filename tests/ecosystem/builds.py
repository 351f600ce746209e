"""What the recipes of ``docs/recipes.md`` need beside cellfeed, fetched once into the cache: Python
packages by their lock file, jars from Maven Central."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Final

from cellfeed.servers.kafka_jars import KAFKA_VERSION, JarsUnavailable, class_path_of
from tests.clients.grid.builds import Unavailable, built, fetch

_KAFKA: Final = ("connect-runtime", "connect-file", "connect-mirror", "kafka-streams")


@cache
def python_packages() -> Path:
    """A folder for ``PYTHONPATH`` with Quix Streams and Faust; its ``bin`` has their programs.
    Raises Unavailable."""

    def build(directory: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        locked = ["--require-hashes", "--no-deps", "-r", "requirements.lock"]
        fetch([*pip, "--no-compile", "--target", "packages", *locked], directory)

    return built("recipes-python", Path(__file__).parent / "python", build) / "packages"


@cache
def kafka_class_path() -> str:
    """Of Connect with its file sink, MirrorMaker 2 and Kafka Streams. Raises Unavailable."""
    jars = [f"org.apache.kafka:{name}:{KAFKA_VERSION}" for name in _KAFKA]
    try:
        return class_path_of(
            f"kafka-recipes-{KAFKA_VERSION}", [*jars, "org.slf4j:slf4j-simple:1.7.36"]
        )
    except JarsUnavailable as reason:
        raise Unavailable(str(reason)) from reason
