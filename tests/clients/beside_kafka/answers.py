"""The parts of an answer that both sides can share."""

from __future__ import annotations

from typing import Any

from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from tests.clients.beside_kafka.side import TOPIC


def sorted_by(field_name: str, what: str, asked: tuple[str, int, Any]) -> tuple[str, int, Any]:
    label, key, answer = asked
    return (
        label,
        key,
        {**answer, what: sorted(answer[what], key=lambda each: str(each[field_name]))},
    )


def only_named(name: str, what: str, asked: tuple[str, int, Any]) -> tuple[str, int, Any]:
    """Of a list of topics or groups this one: others of the round before, and a broker's internal
    ones, are there too."""
    label, key, answer = asked
    return (
        label,
        key,
        {
            **answer,
            what: [
                each for each in answer[what] if name in (each.get("group_id"), each.get("name"))
            ],
        },
    )


def only_topic(asked: tuple[str, int, Any]) -> tuple[str, int, Any]:
    """Of the topics in log directories this one alone, likewise."""
    label, key, answer = asked
    results = [
        {**each, "topics": [topic for topic in each["topics"] if topic["name"] == TOPIC]}
        for each in answer["results"]
    ]
    return label, key, {**answer, "results": results}


def with_records(asked: tuple[str, int, Any]) -> tuple[str, int, Any]:
    """Records instead of bytes: where batches begin is a broker's own affair."""
    label, key, answer = asked
    for topic in answer["responses"]:
        for partition in topic["partitions"]:
            partition["records"] = [
                record._asdict() for record in decode_record_batches(partition["records"] or b"")
            ]
    return label, key, answer
