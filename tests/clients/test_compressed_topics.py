"""Topics with compressed batches, as other people's clients read them: byte for byte the records of
the same topics without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.clients.test_java_tools import SHOW_ALL, Java, as_console, java, of_console
from tests.clients.test_kcat import FORMAT, kcat, parsed
from tests.support.drivers import ConfluentDriver, KafkaPythonDriver
from tests.support.kcat import needs_kcat
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS, Received, expected_records, fill

pytestmark = pytest.mark.integration

__all__ = ["java"]

COMPRESSIONS = {
    "trips": "zstd",
    "trips.BASE": "lz4",
    "trips.NOTES": "snappy",
    "trips.RARE": "gzip",
    "*": "none",
}
MIDDLE = 77


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of its own: one more gateway over the shared store would be of the same cluster."""
    directory = tmp_path_factory.mktemp("compressing") / "store"
    fill(directory)
    return directory


@pytest.fixture(scope="module")
def compressing(store: Path) -> Iterator[GatewayProcess]:
    # JSON throughout: the console consumer of Java writes text.
    with GatewayProcess(
        store, store.parent / "log", compressions=COMPRESSIONS, formats={"*": "json"}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def as_json(store: Path) -> dict[str, list[Received]]:
    return expected_records(store, {"*": "json"})


@pytest.mark.parametrize("topic", ["trips", "trips.BASE", "trips.NOTES", "trips.RARE"])
def test_confluent_kafka_reads_every_codec_whole_and_from_the_middle_of_a_block(
    compressing: GatewayProcess, as_json: dict[str, list[Received]], topic: str
) -> None:
    wanted = as_json[topic]
    assert (
        sorted(
            ConfluentDriver().read(
                compressing.bootstrap, topic, dict.fromkeys(range(SHARDS), 0), len(wanted)
            )
        )
        == wanted
    )
    later = [each for each in wanted if each.offset >= MIDDLE]
    assert (
        sorted(
            ConfluentDriver().read(
                compressing.bootstrap, topic, dict.fromkeys(range(SHARDS), MIDDLE), len(later)
            )
        )
        == later
    )


@pytest.mark.parametrize("topic", ["trips", "trips.BASE", "trips.NOTES", "trips.RARE"])
def test_kafka_python_reads_every_codec(
    compressing: GatewayProcess, as_json: dict[str, list[Received]], topic: str
) -> None:
    wanted = [each for each in as_json[topic] if each.offset >= MIDDLE]
    assert (
        sorted(
            KafkaPythonDriver().read(
                compressing.bootstrap, topic, dict.fromkeys(range(SHARDS), MIDDLE), len(wanted)
            )
        )
        == wanted
    )


@needs_kcat
@pytest.mark.parametrize("topic", ["trips", "trips.BASE", "trips.NOTES", "trips.RARE"])
def test_kcat_reads_every_codec(
    compressing: GatewayProcess, as_json: dict[str, list[Received]], topic: str
) -> None:
    done = kcat(
        compressing,
        "-C",
        "-t",
        topic,
        "-o",
        "beginning",
        "-e",
        "-q",
        "-X",
        "check.crcs=true",
        "-f",
        FORMAT,
    )
    assert sorted(parsed(done.stdout)) == as_json[topic]


def test_the_java_console_consumer_reads_every_codec(
    java: Java, compressing: GatewayProcess, as_json: dict[str, list[Received]]
) -> None:
    wanted = [each for topic in as_json for each in as_console(as_json[topic])]
    arguments = (
        "--include",
        "trips.*",
        "--from-beginning",
        "--max-messages",
        str(len(wanted)),
        "--group",
        "compressed",
    )
    assert sorted(
        of_console(java("consumer.ConsoleConsumer", compressing, *arguments, *SHOW_ALL).stdout)
    ) == sorted(wanted)


def test_describe_configs_reports_the_compression_of_each_topic(
    compressing: GatewayProcess,
) -> None:
    admin = AdminClient({"bootstrap.servers": compressing.bootstrap})
    asked = [
        ConfigResource(ResourceType.TOPIC, topic)
        for topic in ("trips", "trips.BASE", "trips@latest")
    ]
    found = {
        resource.name: future.result(30)["compression.type"].value
        for resource, future in admin.describe_configs(asked).items()
    }
    assert found == {"trips": "zstd", "trips.BASE": "lz4", "trips@latest": "zstd"}
