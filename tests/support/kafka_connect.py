"""Kafka Connect as a local process for tests, standalone, from the jars of Maven Central, with the
file sink that Apache Kafka ships."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cellfeed.servers.kafka_jars import KAFKA_VERSION, jars_directory
from tests.support.free_ports import free_port

_FETCH_TIMEOUT_S: Final = 200
_STOP_TIMEOUT_S: Final = 30.0
_OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cellfeed</groupId><artifactId>kafka-connect-jars</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>connect-file</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


class ConnectUnavailable(Exception):
    """Why Kafka Connect cannot be started here, with the missing parts."""


def connect_class_path() -> str:
    """Of Connect and its file sink, fetched once, beside Kafka's own jars; the folder appears under
    its name only when it is complete."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise ConnectUnavailable(
                f"there is no {program} on this machine; `make services` installs it on Debian"
            )
    target = jars_directory().with_name(f"kafka-connect-{KAFKA_VERSION}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=target.parent) as directory:
                pom, jars = Path(directory) / "pom.xml", Path(directory) / "jars"
                pom.write_text(_POM)
                command = [
                    "mvn",
                    "--batch-mode",
                    "--quiet",
                    "--file",
                    str(pom),
                    "dependency:copy-dependencies",
                    f"-DoutputDirectory={jars}",
                ]
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
                )
                if done.returncode:
                    raise ConnectUnavailable(
                        f"Maven could not fetch Kafka Connect {KAFKA_VERSION}:"
                        f" {(done.stdout or done.stderr).strip()[-300:]}"
                    )
                jars.rename(target)
    return f"{target}/*"


@dataclass
class FileSink:
    """A worker with one connector that writes the values of a topic to ``lines``, one a line. Use
    in a ``with``, which ends it by force."""

    directory: Path
    class_path: str
    bootstrap: str
    topic: str
    name: str = "file-sink"
    process: subprocess.Popen[bytes] | None = None
    _port: int = field(default_factory=free_port)

    @property
    def lines(self) -> list[str]:
        """Whole ones."""
        path = self.directory / "lines"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    @property
    def group(self) -> str:
        """That Connect commits its offsets in."""
        return f"connect-{self.name}"

    def start(self) -> None:
        (self.directory / "plugins").mkdir(parents=True, exist_ok=True)
        worker = {
            "bootstrap.servers": self.bootstrap,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": self.directory / "offsets",
            "offset.flush.interval.ms": 300,
            # so long a group waits for a member that was killed
            "consumer.session.timeout.ms": 6_000,
            "plugin.discovery": "service_load",
            "plugin.path": self.directory / "plugins",
            "listeners": f"http://127.0.0.1:{self._port}",
        }
        connector = {
            "name": self.name,
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "tasks.max": 1,
            "topics": self.topic,
            "file": self.directory / "lines",
        }
        for name, settings in (("worker", worker), ("connector", connector)):
            (self.directory / f"{name}.properties").write_text(
                "".join(f"{key}={value}\n" for key, value in settings.items())
            )
        files = [str(self.directory / f"{name}.properties") for name in ("worker", "connector")]
        command = [
            "java",
            *_OPTIONS,
            "-cp",
            self.class_path,
            "org.apache.kafka.connect.cli.ConnectStandalone",
            *files,
        ]
        with (self.directory / "connect.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9; nothing when it does not run."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(_STOP_TIMEOUT_S)
            self.process = None

    def __enter__(self) -> FileSink:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
