"""All that the recipes of ``docs/recipes.md`` need beside cellfeed, fetched once into the cache:
Python packages by their lock files (Spark and Flink among them), jars from Maven Central."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from cellfeed.servers.kafka_jars import KAFKA_VERSION, JarsUnavailable, class_path_of
from tests.clients.grid.builds import Unavailable, built, fetch, needs, needs_go, npm_ci

_KAFKA: Final = ("connect-runtime", "connect-file", "connect-mirror", "kafka-streams")
_FETCH_TIMEOUT_S: Final = 600.0
"""Spark and Flink are half a gigabyte each."""

SPARK_VERSION: Final = "4.1.1"
SPARK_PACKAGES: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    f"org.apache.spark:spark-avro_2.13:{SPARK_VERSION}",
)
"""The words of ``spark-submit --packages`` in the page."""

FLINK_VERSION: Final = "2.2.0"
_FLINK_JARS: Final = (
    ("flink-sql-connector-kafka", "5.0.0-2.2"),
    ("flink-sql-avro-confluent-registry", FLINK_VERSION),
    ("flink-sql-gateway", FLINK_VERSION),
)
"""The last is a part of Flink's archive that its Python package leaves out."""


@cache
def python_packages() -> Path:
    """A folder for ``PYTHONPATH`` with Quix Streams, Faust and Bytewax; its ``bin`` has programs.
    Raises Unavailable."""
    return _packages("python")


@cache
def spark() -> Path:
    """A folder for ``PYTHONPATH`` with Spark; ``pyspark`` in it is Spark's home. Raises
    Unavailable."""
    return _packages("spark")


@cache
def spark_jars() -> str:
    """``SPARK_PACKAGES`` with all that they need, as ``spark-submit --jars`` wants them. Raises
    Unavailable."""
    fetched = Path(_class_path(f"spark-recipes-{SPARK_VERSION}", SPARK_PACKAGES)).parent
    # Spark brings the rest along, some of it newer.
    own = {each.name.rpartition("-")[0] for each in (spark() / "pyspark" / "jars").iterdir()}
    jars = sorted(
        str(each) for each in fetched.iterdir() if each.name.rpartition("-")[0] not in own
    )
    return ",".join(jars)


@cache
def flink_class_path() -> str:
    """Of Flink's SQL client, with the connector to Kafka and the format. Raises Unavailable."""
    home = _packages("flink") / "pyflink"
    names = [f"org.apache.flink:{name}:{version}" for name, version in _FLINK_JARS]
    fetched = Path(_class_path(f"flink-recipes-{FLINK_VERSION}", names)).parent
    client = [
        home / "opt" / f"flink-{name}-{FLINK_VERSION}.jar" for name in ("sql-client", "python")
    ]
    jars = [fetched / f"{name}-{version}.jar" for name, version in _FLINK_JARS]
    return ":".join(map(str, [home / "lib" / "*", *client, *jars]))


@cache
def go_generator() -> Path:
    """A Go module with oapi-codegen as its tool, and a program for the client that it makes. Raises
    Unavailable."""
    module = Path(__file__).parent / "openapi" / "go"
    needs_go(module)
    return built("openapi-go", module, lambda copy: fetch(["go", "mod", "download"], copy))


@cache
def node_generator() -> Path:
    """A Node package with openapi-ts, and a program for the client that it makes. Raises
    Unavailable."""
    needs("npm", "Node.js 20 or newer with npm (the packages nodejs and npm of a current Debian)")
    return built("openapi-node", Path(__file__).parent / "openapi" / "node", npm_ci)


@cache
def kafka_class_path() -> str:
    """Of Connect with its file sink, MirrorMaker 2 and Kafka Streams. Raises Unavailable."""
    jars = [f"org.apache.kafka:{name}:{KAFKA_VERSION}" for name in _KAFKA]
    return _class_path(f"kafka-recipes-{KAFKA_VERSION}", [*jars, "org.slf4j:slf4j-simple:1.7.36"])


def _packages(folder: str) -> Path:
    """The packages that the lock file of a folder names."""

    def build(directory: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        locked = ["--require-hashes", "--no-deps", "-r", "requirements.lock"]
        fetch([*pip, "--no-compile", "--target", "packages", *locked], directory, _FETCH_TIMEOUT_S)

    return built(f"recipes-{folder}", Path(__file__).parent / folder, build) / "packages"


def _class_path(name: str, jars: Sequence[str]) -> str:
    try:
        return class_path_of(name, jars)
    except JarsUnavailable as reason:
        raise Unavailable(str(reason)) from reason
