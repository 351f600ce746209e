"""Classifies errors of the Kafka client for an exporter."""

from __future__ import annotations

from enum import Enum

from confluent_kafka import KafkaError, KafkaException

_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001
)


class Verdict(Enum):
    """The remedy for an error."""

    RETRY = "the same call again"
    RENEW = "the producers are to be given up and others made, which end the open transactions"
    FENCED = "another exporter has the unit"


def error_of(error: KafkaException) -> KafkaError:
    """The client's error in an exception."""
    [found] = error.args[:1]
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(found))  # noqa: SLF001


def verdict(error: KafkaError) -> Verdict:
    """By the client's own word, as its documentation of transactions has it; fencing before
    anything else."""
    if error.code() in _FENCED:
        return Verdict.FENCED
    return (
        Verdict.RETRY
        if error.retriable() and not error.fatal() and not error.txn_requires_abort()
        else Verdict.RENEW
    )


def words(error: KafkaError) -> str:
    """One line: the code's name and the client's text."""
    return f"{error.name()}: {' '.join(str(error.str()).split())}"
