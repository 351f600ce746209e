"""The fate of an error that the Kafka client raises out of a callback, and hides."""

from __future__ import annotations

from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from cellfeed.bridge.export.kafka_errors import Verdict, error_of, verdict
from cellfeed.bridge.export.unit_producer import _served

FENCED = KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer instance"))


class Useless:
    """A producer that tells ``why`` when it is asked to do anything."""

    def __init__(self, why: BaseException | None) -> None:
        self.why = why

    def abort_transaction(self, timeout_s: float) -> None:
        assert timeout_s > 0
        if self.why is not None:
            raise self.why


def found(producer: Useless, raised: BaseException) -> KafkaError:
    def call(_wait_s: float) -> int:
        raise raised

    with pytest.raises(KafkaException) as error:
        _served(cast("Producer", producer), call, 1.0)
    return error_of(error.value)


def test_an_error_raised_at_once_by_the_client_is_the_result() -> None:
    assert found(Useless(None), FENCED).code() == KafkaError._FENCED


def test_a_reason_that_is_hidden_as_the_cause_is_the_error() -> None:
    hidden = SystemError("returned a result with an exception set")
    hidden.__cause__ = FENCED
    assert verdict(found(Useless(None), hidden)) is Verdict.FENCED


def test_a_reason_that_was_lost_is_asked_for() -> None:
    assert (
        verdict(found(Useless(FENCED), SystemError("returned NULL without setting an exception")))
        is Verdict.FENCED
    )


@pytest.mark.parametrize("then", [None, SystemError("again")])
def test_a_producer_is_given_up_after_an_error_without_a_reason(then: BaseException | None) -> None:
    error = found(Useless(then), SystemError("returned NULL without setting an exception"))
    assert verdict(error) is Verdict.RENEW
    assert "returned NULL" in str(error.str())
