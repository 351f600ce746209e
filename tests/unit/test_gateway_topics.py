"""Topics are views of a datastore's logs: which there are, what they carry, and ids that are the same in every gateway for ever."""

from __future__ import annotations

from uuid import UUID

import pytest

from bridge.events.envelope import AvroFormat, JsonFormat
from bridge.gateway.topics import Topics, legal_topic_name

AVRO, JSON = AvroFormat(1), JsonFormat()


def test_the_full_topic_is_there_before_any_column_is() -> None:
    topics = Topics("trips", list, {"*": AVRO})
    [full] = topics.all()
    assert (full.name, full.view.column) == ("trips", None)
    topics.refresh()
    assert topics.all() == [full]


def test_a_columns_topic_is_there_after_the_next_look_and_stays_the_same() -> None:
    columns = ["BASE"]
    topics = Topics("trips", lambda: list(columns), {"*": AVRO})
    assert topics.named("trips.BASE") is None
    topics.refresh()
    base = topics.named("trips.BASE")
    assert base is not None
    assert base.view.column == "BASE"
    columns.insert(0, "ANOTHER")
    topics.refresh()
    assert topics.named("trips.BASE") is base
    assert [topic.name for topic in topics.all()] == ["trips", "trips.ANOTHER", "trips.BASE"]


@pytest.mark.parametrize("column", ["a b", "é", "a/b", "x" * 250, "a\n", "ÄÖ"])
def test_a_column_whose_name_kafka_does_not_allow_has_no_topic_of_its_own(column: str) -> None:
    topics = Topics("trips", lambda: [column, "BASE"], {"*": AVRO})
    topics.refresh()
    assert {topic.name for topic in topics.all()} == {"trips", "trips.BASE"}


def test_columns_that_differ_in_case_or_in_dots_are_topics_of_their_own() -> None:
    topics = Topics("trips", lambda: ["BASE", "base", "BASE.x"], {"*": AVRO})
    topics.refresh()
    found = topics.all()
    assert [topic.view.column for topic in found] == [None, "BASE", "BASE.x", "base"]
    assert len({topic.topic_id for topic in found}) == 4


def test_ids_follow_from_names_alone_and_never_change() -> None:
    for order in (["BASE", "NOTES"], ["NOTES", "BASE"]):
        topics = Topics("trips", lambda order=order: order, {"*": AVRO})  # type: ignore[misc]
        topics.refresh()
        assert {topic.name: str(topic.topic_id) for topic in topics.all()} == {
            "trips": "dfaae544-5f9a-5ac8-b8cf-ea7452440435",
            "trips.BASE": "332c9737-2755-5ed7-8429-6ce4243d08d4",
            "trips.NOTES": "bb788b1f-f156-5a11-b268-0761aec7e29f",
        }
        assert all(topics.identified(topic.topic_id) is topic for topic in topics.all())
    assert topics.identified(UUID(int=0)) is None
    assert topics.identified(None) is None


def test_each_topic_carries_what_is_configured_for_it_or_else_the_default() -> None:
    topics = Topics("trips", lambda: ["BASE", "NOTES"], {"*": AVRO, "trips.BASE": JSON})
    topics.refresh()
    assert {topic.name: topic.event_format for topic in topics.all()} == {"trips": AVRO, "trips.BASE": JSON, "trips.NOTES": AVRO}


@pytest.mark.parametrize(
    ("name", "legal"), [("trips", True), ("a.b_c-D9", True), ("x" * 249, True), ("x" * 250, False), ("", False), (".", False), ("..", False)]
)
def test_legal_names_are_kafkas(name: str, legal: bool) -> None:
    assert legal_topic_name(name) is legal
