"""The topics that a gateway serves, and the schemas that its registry knows for them."""

from __future__ import annotations

from cellfeed.bridge.events.compression import compression_named
from cellfeed.bridge.events.formats import AvroFormat, CreatedAt, EventFormat
from cellfeed.bridge.events.named_formats import event_format
from cellfeed.bridge.events.registry import SchemaRegistry, envelope_schema_id
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.topics.topics import Topics, legal_topic_name
from cellfeed.bridge.gateway.topics.typed_topics import TypedTopics
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.store.datastore import Datastore


def topics_of(datastore: Datastore, config: GatewayConfig, typed: TypedTopics) -> Topics:
    """One for each column, and the declared ones."""
    names = {"*": "avro", **config.formats}
    made: dict[tuple[str, CreatedAt], EventFormat] = {}

    def format_of(name: str, created_at: CreatedAt = "micros") -> EventFormat:
        key = name, created_at
        if key not in made:
            made[key] = event_format(
                name, datastore.name, envelope_schema_id(created_at), created_at
            )
        return made[key]

    declared = [
        (
            topic,
            format_of(topic.format, topic.created_at)
            if topic.format != "typed"
            else typed.format_of(topic),
        )
        for topic in config.topics
    ]
    compressions = {topic: compression_named(name) for topic, name in config.compressions.items()}
    topics = Topics(
        datastore.name,
        datastore.engine.columns,
        {topic: format_of(name) for topic, name in names.items()},
        declared,
        compressions,
    )
    typed.follow(topics)
    return topics


def registry_of(
    datastore: Datastore, config: GatewayConfig, topics: Topics, typed: TypedTopics
) -> SchemaRegistry:
    """Knows the topics that are served as Avro."""
    names = {"*": "avro", **config.formats}

    def is_avro(topic: str) -> bool:
        topics.refresh()
        found = topics.named(topic)
        return found is not None and (isinstance(found.event_format, AvroFormat | TypedFormat))

    return SchemaRegistry(
        datastore.name,
        datastore.engine.columns,
        serves_avro=lambda topic: (
            legal_topic_name(topic) and names.get(topic, names["*"]) == "avro"
        ),
        declared=[topic.name for topic in config.topics if topic.format in ("avro", "typed")],
        unlisted=is_avro,
        millis={
            topic.name
            for topic in config.topics
            if topic.format == "avro" and topic.created_at == "millis"
        },
        typed=typed,
    )
