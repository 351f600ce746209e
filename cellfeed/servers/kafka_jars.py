"""Apache Kafka's own jars from Maven Central: a broker as a local server, and its command-line
tools.

``python -m cellfeed.servers.kafka_jars [VERSION ...]`` fetches them: without a version, of both
that the tests need.

Fetched once into ``~/.cache/cellfeed/kafka-<version>`` (``CELLFEED_CACHE`` names another folder);
the folder appears under its name only when it is complete, so a fetch that was cut off is repeated.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

KAFKA_VERSION: Final = "4.1.1"
OLDER_KAFKA_VERSION: Final = "3.9.2"
"""Of the major version before: exports are tested against both."""

_FETCH_TIMEOUT_S: Final = 240
_KAFKA_JARS: Final = (
    "org.apache.kafka:kafka_2.13:{version}",
    "org.apache.kafka:kafka-tools:{version}",
    "org.slf4j:slf4j-simple:1.7.36",
)
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cellfeed</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_PARTS: Final = ("groupId", "artifactId", "version", "classifier")
"""Of a dependency, as its text has them between colons; most have no classifier."""


class JarsUnavailable(Exception):
    """Why there are no jars: no Java, no Maven, or no network."""


def jars_directory(version: str = KAFKA_VERSION) -> Path:
    """Where Kafka's jars are once they have been fetched."""
    return _cache() / f"kafka-{version}"


def kafka_class_path(version: str = KAFKA_VERSION) -> str:
    """The class path of Kafka's jars, fetched where they are not there yet. Raises JarsUnavailable
    with the reason."""
    return class_path_of(f"kafka-{version}", [each.format(version=version) for each in _KAFKA_JARS])


def class_path_of(name: str, jars: Sequence[str]) -> str:
    """The class path of these jars (``group:artifact:version``, or with ``:classifier``) and their
    dependencies, in a folder of the cache. Raises JarsUnavailable with the reason."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise JarsUnavailable(
                f"there is no {program} on this machine; `make services` installs it on Debian"
            )
    target = _cache() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    # Test processes that run side by side fetch it once.
    with (target.parent / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fetch(jars, target)
    return f"{target}/*"


def _cache() -> Path:
    return Path(os.environ.get("CELLFEED_CACHE") or Path.home() / ".cache" / "cellfeed")


def _fetch(wanted: Sequence[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        pom = Path(directory) / "pom.xml"
        pom.write_text(_POM.format(dependencies="".join(map(_dependency, wanted))))
        jars = Path(directory) / "jars"
        command = [
            "mvn",
            "--batch-mode",
            "--quiet",
            "--file",
            str(pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={jars}",
        ]
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S
            )
        except subprocess.CalledProcessError as error:
            raise JarsUnavailable(
                f"Maven could not fetch {wanted[0]}:"
                f" {(error.stdout or error.stderr).strip()[-300:]}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise JarsUnavailable(
                f"Maven did not fetch {wanted[0]} within {_FETCH_TIMEOUT_S} s"
            ) from error
        jars.rename(target)


def _dependency(text: str) -> str:
    parts = zip(_PARTS, text.split(":"), strict=False)
    return f"<dependency>{''.join(f'<{name}>{part}</{name}>' for name, part in parts)}</dependency>"


if __name__ == "__main__":
    try:
        for wanted in sys.argv[1:] or (KAFKA_VERSION, OLDER_KAFKA_VERSION):
            kafka_class_path(wanted)
    except (JarsUnavailable, OSError) as error:
        sys.exit(f"Kafka's jars: {error}")
