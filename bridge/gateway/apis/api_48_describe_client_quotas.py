"""DescribeClientQuotas (key 48), versions 0–1: the quotas of principals
(:mod:`cellfeed.store.security.quotas`), as the configuration declares them.

A principal is an entity of type ``user``; ``*`` is the default one, whose name is null.
``consumer_byte_rate`` is ``read_bytes_per_s``, ``producer_byte_rate`` is ``put_bytes_per_s``.
Kafka has no name for ``requests_per_s``, which goes as ``request_rate``. Everybody is shown the own
quota, and an operator of the datastore all of them. Filters of other types find nothing; one that
is not understood is INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.security.peer_limits import EVERYBODY_ELSE, Quota

KEY: Final = 48
VERSIONS: Final = (0, 1)
_USER: Final = "user"
_EXACT, _DEFAULT, _ANY = 0, 1, 2


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    filters = list(request.components)
    if any(each.match_type not in (_EXACT, _DEFAULT, _ANY) for each in filters):
        return _answer(ErrorCode.invalid_request, "a filter matches exactly, the default, or any")
    entries = [
        _entry(name, quota)
        for name, quota in sorted(_shown(context, peer))
        if all(_fits(name, each) for each in filters)
    ]
    return _answer(ErrorCode.none, None, entries)


def _shown(context: GatewayContext, peer: Peer) -> Iterable[tuple[str, Quota]]:
    rules, principal = context.quotas.rules, peer.principal
    if context.security.may(principal, "datastore", context.topics.datastore, "operate"):
        return rules.items()
    own = principal if principal in rules else EVERYBODY_ELSE
    return [(own, rules[own])] if own in rules else []


def _fits(name: str, asked: Any) -> bool:
    if asked.entity_type != _USER:
        return False
    if asked.match_type == _DEFAULT:
        return name == EVERYBODY_ELSE
    return asked.match_type == _ANY or (name != EVERYBODY_ELSE and name == asked.match)


def _entry(name: str, quota: Quota) -> dict[str, Any]:
    rates = {
        "consumer_byte_rate": quota.read_bytes_per_s,
        "producer_byte_rate": quota.put_bytes_per_s,
        "request_rate": quota.requests_per_s,
    }
    return {
        "entity": [{"entity_type": _USER, "entity_name": None if name == EVERYBODY_ELSE else name}],
        "values": [
            {"key": key, "value": float(rate)} for key, rate in rates.items() if rate is not None
        ],
    }


def _answer(
    error: ErrorCode, message: str | None, entries: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "error_code": error,
        "error_message": message,
        "entries": entries if error is ErrorCode.none else None,
    }
