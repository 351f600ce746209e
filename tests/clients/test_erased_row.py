"""A row that is erased by another process, as other people's Kafka clients find it through a
gateway that had kept its log."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import confluent_kafka
import pytest

from cellfeed.store.cells.cell import ERASED_COLUMN
from cellfeed.store.datastore import Datastore
from tests.clients.test_trimmed_log import PARTITION, confluent, consumed
from tests.support.running_gateway import GatewayProcess

pytestmark = pytest.mark.integration


def values(messages: list[confluent_kafka.Message]) -> dict[int, bytes | None]:
    return {message.offset() or 0: message.value() for message in messages}


def headers(message: confluent_kafka.Message) -> dict[str, bytes]:
    found = message.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return {name: value for name, value in pairs if isinstance(value, bytes)}


def test_a_gateway_drops_kept_blocks_of_an_erased_row_and_serves_the_other_rows_unchanged(
    own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    with Datastore.open_embedded(tmp_path / "store") as datastore:
        end = datastore.heads()[PARTITION].watermark
        before = consumed(confluent(own_gateway, "before", "error", 0), end)
        victim = next(cell for cell in datastore.engine.scan(PARTITION, 5, 1))
        places = {cell.added_id for cell in datastore.engine.row_cells(victim.row_key)}
        follower = confluent(own_gateway, "follower", "error", end)
        erased = datastore.erase_row(before[5].key().decode())  # type: ignore[union-attr]
        assert (erased.shard, erased.added_id, erased.cells) == (PARTITION, end, len(places))
        # Anybody who had read all of it is informed, by a record of its key without a value.
        [told] = consumed(follower, 1)
        assert (told.offset(), told.key(), told.value()) == (end, before[5].key(), None)
        assert headers(told) == {
            "added_id": b"%d" % end,
            "column_name": ERASED_COLUMN.encode(),
            "ref_key": b"0",
        }
        # The gateway has told of the erasure, so nothing that it had kept from before comes any
        # more, from any offset.
        for start in (0, 5, end - 1):
            after = consumed(
                confluent(own_gateway, f"after-{start}", "error", start), end + 1 - start
            )
            expected = {
                offset: None if offset in places else value
                for offset, value in values(before).items()
            } | {end: None}
            assert values(after) == {
                offset: value for offset, value in expected.items() if offset >= start
            }
        first = next(
            message for message in consumed(confluent(own_gateway, "headers", "error", 5), 1)
        )
        assert headers(first) == {
            "added_id": b"5",
            "column_name": victim.column_name.encode(),
            "ref_key": b"%d" % victim.ref_key,
        }


def test_a_topic_of_one_column_shows_the_erasure_as_well(
    own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    with Datastore.open_embedded(tmp_path / "store") as datastore:
        [cell] = datastore.engine.scan(PARTITION, 5, 1)
        other = "trips.RARE" if cell.column_name != "RARE" else "trips.BASE"
        end = datastore.heads()[PARTITION].watermark
        settings = {
            "bootstrap.servers": own_gateway.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
        consumer = confluent_kafka.Consumer(settings)
        consumer.assign(
            [
                confluent_kafka.TopicPartition(topic, PARTITION, end)
                for topic in (other, f"{other}@latest")
            ]
        )

        datastore.erase_row(UUID(bytes=cell.row_key))
        found = consumed(consumer, 2)
        assert {(message.topic(), message.offset(), message.value()) for message in found} == {
            (other, end, None),
            (f"{other}@latest", end, None),
        }
