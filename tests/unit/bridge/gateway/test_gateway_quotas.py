"""Quotas at a gateway: requests of a debtor wait for their time, never for ever; each principal is
shown its own quota."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis import api_48_describe_client_quotas
from cellfeed.bridge.gateway.limits import THROTTLE_FETCH_MAX_S, THROTTLE_MAX_S
from cellfeed.bridge.gateway.throttling import pay_for_answer, wait_for_quota
from cellfeed.bridge.gateway.wire.protocol import FETCH
from cellfeed.store.security.access import Security, User
from cellfeed.store.security.peer_limits import EVERYBODY_ELSE, Quota
from cellfeed.store.security.quotas import Quotas
from cellfeed.store.security.rights import Acl
from tests.support.gateway_context import PEER, TOPIC, KnownHeads

HEARTBEAT = 12


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr("cellfeed.bridge.gateway.throttling.asyncio.sleep", sleep)
    return found


def quotas_of(**rates: float) -> Quotas:
    return Quotas({"a": Quota(**rates)}, lambda: 7.0)


def waited(quotas: Quotas, principal: str, api_key: int) -> None:
    asyncio.run(wait_for_quota(quotas, principal, api_key))


def test_a_fetch_waits_until_the_answers_before_it_are_paid_for(slept: list[float]) -> None:
    quotas = quotas_of(read_bytes_per_s=100)
    pay_for_answer(quotas, "a", FETCH, [b"x" * 200, b"y" * 200])
    pay_for_answer(quotas, "a", HEARTBEAT, [b"x" * 200])
    waited(quotas, "a", FETCH)
    assert slept == [pytest.approx(3)]
    assert quotas.waits == 1
    assert quotas.waited_s == pytest.approx(3)
    waited(quotas, "a", HEARTBEAT)
    waited(quotas, "b", FETCH)
    assert len(slept) == 1, "a heartbeat, or another principal, waits for bytes"


def test_no_request_waits_for_so_long_that_its_client_gives_it_up(slept: list[float]) -> None:
    quotas = quotas_of(read_bytes_per_s=1, requests_per_s=1)
    pay_for_answer(quotas, "a", FETCH, [b"x" * 1_000])
    waited(quotas, "a", FETCH)
    quotas.spend("a", requests=1_000)
    waited(quotas, "a", HEARTBEAT)
    assert slept == [THROTTLE_FETCH_MAX_S, THROTTLE_MAX_S]


def test_requests_of_all_kinds_are_counted(slept: list[float]) -> None:
    quotas = quotas_of(requests_per_s=2)
    for api_key in (FETCH, HEARTBEAT, FETCH):
        waited(quotas, "a", api_key)
    assert not slept
    waited(quotas, "a", HEARTBEAT)
    assert slept == [pytest.approx(0.5)]


def described(security: Security, *filters: Any) -> dict[str, Any]:
    known = KnownHeads()
    known.context.security = security
    known.context.topics = cast("Any", SimpleNamespace(datastore=TOPIC))
    known.context.quotas = Quotas(
        {
            EVERYBODY_ELSE: Quota(read_bytes_per_s=5e6),
            "billing": Quota(requests_per_s=9, put_bytes_per_s=1e6),
        }
    )
    asked = SimpleNamespace(components=filters, strict=False)
    handled = api_48_describe_client_quotas.handle(known.context, asked, cast("Any", None), PEER)
    return asyncio.run(cast("Any", handled))


def asked_for(match_type: int, match: str | None = None, entity_type: str = "user") -> Any:
    return SimpleNamespace(entity_type=entity_type, match_type=match_type, match=match)


def names(answer: dict[str, Any]) -> list[str | None]:
    return [each["entity"][0]["entity_name"] for each in answer["entries"]]


OPEN = Security({}, (), b"")
OPERATOR = Security({}, (Acl(PEER.principal, "datastore", TOPIC, "operate"),), b"")
OTHER = Security({"x": User("x", {})}, (), b"")


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([], [None, "billing"]),
        ([asked_for(0, "billing")], ["billing"]),
        ([asked_for(0, EVERYBODY_ELSE)], []),
        ([asked_for(0, "nobody")], []),
        ([asked_for(1)], [None]),
        ([asked_for(2)], [None, "billing"]),
        ([asked_for(2, entity_type="client-id")], []),
        ([asked_for(2), asked_for(2, entity_type="ip")], []),
    ],
)
def test_filters_find_the_quotas_that_they_describe(
    filters: list[Any], found: list[str | None]
) -> None:
    for security in (OPEN, OPERATOR):
        answer = described(security, *filters)
        assert answer["error_code"] is ErrorCode.none
        assert names(answer) == found


def test_a_principal_without_a_right_is_shown_its_own_quota_alone() -> None:
    answer = described(OTHER)
    assert names(answer) == [None]
    [entry] = answer["entries"]
    assert entry["values"] == [{"key": "consumer_byte_rate", "value": 5e6}]
    assert names(described(OTHER, asked_for(0, "billing"))) == []


def test_rates_have_the_names_of_kafka() -> None:
    [entry] = described(OPERATOR, asked_for(0, "billing"))["entries"]
    rates = {each["key"]: each["value"] for each in entry["values"]}
    assert rates == {"producer_byte_rate": 1e6, "request_rate": 9.0}


def test_a_filter_of_an_unknown_kind_is_refused() -> None:
    answer = described(OPEN, asked_for(7))
    assert answer["error_code"] is ErrorCode.invalid_request
    assert answer["entries"] is None
