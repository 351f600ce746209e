"""ListTransactions (key 66), versions 0–2: none: a request to begin one is refused
(:mod:`cellfeed.bridge.gateway.apis.api_22_init_producer_id`).

Names of states that Kafka does not have are given back, as a broker does. A pattern of
transactional ids (version 2) is not checked: nothing fits it anyhow.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 66
VERSIONS: Final = (0, 2)
_STATES: Final = frozenset(
    (
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    )
)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, head, peer
    unknown = [state for state in request.state_filters if state not in _STATES]
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "unknown_state_filters": unknown,
        "transaction_states": [],
    }
