"""Topics are views of a datastore's logs: which there are, their records, and ids that are the same
in every gateway for ever."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from cellfeed.bridge.events.envelope import AvroFormat, JsonFormat
from cellfeed.bridge.events.formats import EventFormat
from cellfeed.bridge.events.views import Condition, View
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic, check_topics
from cellfeed.bridge.gateway.topics.topics import Topics, legal_topic_name
from cellfeed.store.errors import InvalidRequest

AVRO, JSON = AvroFormat(1), JsonFormat()


def test_the_full_topic_exists_before_any_column() -> None:
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


def test_each_topic_has_its_configured_settings_or_the_defaults() -> None:
    topics = Topics("trips", lambda: ["BASE", "NOTES"], {"*": AVRO, "trips.BASE": JSON})
    topics.refresh()
    expected: dict[str, EventFormat] = {"trips": AVRO, "trips.BASE": JSON, "trips.NOTES": AVRO}
    assert {topic.name: topic.event_format for topic in topics.all()} == expected


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("trips", True),
        ("a.b_c-D9", True),
        ("x" * 249, True),
        ("x" * 250, False),
        ("", False),
        (".", False),
        ("..", False),
    ],
)
def test_legal_names_are_kafkas(name: str, legal: bool) -> None:
    assert legal_topic_name(name) is legal


CARDS = VirtualTopic(
    "cards",
    column="BASE",
    filter=[Condition("kind", "=", value="card")],
    fields=["fare"],
    format="json",
)


def test_declared_topics_are_listed_with_the_others_each_in_its_own_format() -> None:
    topics = Topics(
        "trips",
        lambda: ["BASE"],
        {"*": AVRO},
        [(CARDS, JSON), (VirtualTopic("now", latest=True), AVRO)],
    )
    topics.refresh()
    assert [topic.name for topic in topics.all()] == ["cards", "now", "trips", "trips.BASE"]
    cards, now = topics.named("cards"), topics.named("now")
    assert cards is not None
    assert now is not None
    assert (cards.view, cards.event_format, cards.latest) == (CARDS.view, JSON, False)
    assert (now.view, now.event_format, now.latest) == (View(), AVRO, True)
    assert topics.identified(cards.topic_id) is cards


def test_the_id_of_a_declared_topic_follows_from_its_definition_so_another_view_has_another() -> (
    None
):
    def topic_id(topic: VirtualTopic) -> UUID:
        found = Topics("trips", list, {"*": AVRO}, [(topic, AVRO)]).named(topic.name)
        assert found is not None
        return found.topic_id

    others = [
        VirtualTopic("cards"),
        VirtualTopic("cards", column="BASE"),
        VirtualTopic("cards", latest=True),
        VirtualTopic("cards", format="json"),
    ]
    assert topic_id(CARDS) == topic_id(replace(CARDS))
    assert len({topic_id(topic) for topic in [CARDS, *others]}) == 5
    assert str(topic_id(VirtualTopic("cards"))) == "c07bf9f4-17bf-51d5-aea9-48487fee3f25", (
        "two versions of the gateway give one declaration one id"
    )


def test_latest_is_listed_after_the_full_topic_and_unlisted_column_topics_are_found_by_name() -> (
    None
):
    topics = Topics(
        "trips",
        lambda: ["BASE", "x@latest"],
        {"*": AVRO, "trips.BASE": JSON, "trips@latest": JSON},
        [(CARDS, JSON)],
    )
    assert topics.named("trips.BASE@latest") is None
    topics.refresh()
    assert [topic.name for topic in topics.all()] == ["cards", "trips", "trips.BASE"]
    full, base = topics.named("trips@latest"), topics.named("trips.BASE@latest")
    assert full is not None
    assert base is not None
    assert (full.view, full.event_format, full.latest) == (View(), JSON, True)
    assert (base.view, base.event_format, base.latest) == (View("BASE"), JSON, True)
    assert topics.identified(base.topic_id) is base
    assert topics.named("cards@latest") is None
    assert topics.named("trips.x@latest") is None, (
        "the column's name is not legal, and its cells are not those of a column x"
    )


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        (
            [VirtualTopic("trips")],
            (
                r"topic trips: that is the topic of all cells; give the view another name, as"
                r" trips-view"
            ),
        ),
        (
            [VirtualTopic("trips.cards")],
            (
                r"topic trips.cards: names that begin with trips. are those of columns; .* as"
                r" trips-cards"
            ),
        ),
        ([VirtualTopic("..")], r"topic '\.\.': Kafka does not allow"),
        ([VirtualTopic("a\n")], r"topic 'a\\n': Kafka does not allow"),
        (
            [CARDS, VirtualTopic("cards")],
            r"topic cards: the name is given twice; give one of them another name",
        ),
        (
            [VirtualTopic("a", fields=["x", "x.y"])],
            r"topic a: fields: 'x.y' is given twice, or is a part of 'x'",
        ),
        ([VirtualTopic("a", column="")], r"topic a: .*column"),
        (
            [VirtualTopic("a", filter=[Condition("k", "=")])],
            r"topic a: filter on 'k': = goes with a value",
        ),
        (
            [replace(CARDS, latest=True)],
            r"topic cards: filter and latest do not go together: .* take one of them out",
        ),
        (
            [VirtualTopic(f"t{number}") for number in range(101)],
            r"101 topics are declared; at most 100 are possible, take some out",
        ),
        (
            [VirtualTopic("told")],
            (
                r"topic told: its format is said where it is declared; take it out of the gateway's"
                r" formats"
            ),
        ),
    ],
)
def test_an_invalid_topic_declaration_is_refused_with_the_topic_and_the_fix(
    declared: list[VirtualTopic], error: str
) -> None:
    with pytest.raises(InvalidRequest, match=error):
        check_topics("trips", declared, {"told": "json"})


def test_the_most_topics_may_be_declared_also_with_names_like_those_of_columns() -> None:
    check_topics(
        "trips",
        [
            CARDS,
            *(VirtualTopic(name) for name in ("trips-latest", "trips_", "tripsy.x", "a.trips")),
            *map(VirtualTopic, map(str, range(95))),
        ],
    )
