"""Apache Kafka's own jars for tests: those of the local server."""

from cellfeed.servers.kafka_jars import JarsUnavailable, kafka_class_path

__all__ = ["JarsUnavailable", "kafka_class_path"]
