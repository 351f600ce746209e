"""``/livez``, ``/readyz``, their older names under ``/health``, and ``/metrics``."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from litestar import get
from litestar.response import Response

from cellfeed.store.errors import CellfeedError, Unavailable
from cellfeed.store.http.server.handlers import ReadState
from cellfeed.store.http.server.metrics import METRICS_MEDIA_TYPE, WorkerMetrics
from cellfeed.store.http.server.route_rights import describe, operate
from cellfeed.store.progress import Reason, unready

READY_TIMEOUT_S: Final = 2.0
"""A storage that does not answer within this is not ready: far above any healthy read, below the
usual probe's own patience."""


class HealthMessage(msgspec.Struct):
    """``live``: the process answers. ``ready``: so does its storage, and each of its parts
    advances. ``reason``: all ``reasons`` in one line."""

    live: bool
    ready: bool
    datastore: str
    reason: str | None = None
    reasons: list[Reason] = []


class HealthState(ReadState):
    """The read state with the worker's counters."""

    metrics: WorkerMetrics


@get(
    ["/livez", "/health/live"],
    tags=["operation"],
    summary="Whether the process answers",
    opt={"right": describe, "query": ()},
)
async def live(state: HealthState) -> HealthMessage:
    """Always 200: no answer means not alive. Says nothing of the storage."""
    return HealthMessage(live=True, ready=True, datastore=state.datastore.name)


@get(
    ["/readyz", "/health", "/health/ready"],
    tags=["operation"],
    summary="Whether the storage answers and the worker advances",
    opt={"right": describe, "query": ()},
)
async def ready(state: HealthState) -> Response[HealthMessage]:
    """200 when the engine answered a read just now, no loop of the worker is dead, and none stands;
    else 503 with the reasons."""
    reasons = unready() or await _storage_reasons(state)
    message = HealthMessage(
        live=True,
        ready=not reasons,
        datastore=state.datastore.name,
        reason="; ".join(map(str, reasons)) or None,
        reasons=reasons,
    )
    return Response(message, status_code=503 if reasons else 200)


@get(
    "/metrics",
    tags=["operation"],
    summary="Metrics for Prometheus",
    media_type=METRICS_MEDIA_TYPE,
    response_class=Response,
    opt={"right": operate, "query": ()},
)
async def metrics(state: HealthState) -> bytes:
    """The Prometheus text form: this worker's counts and, with clusters, the state of their nodes
    and watermarks."""
    # Not among the reads: metrics are wanted most when those are all waiting for a storage that
    # hangs.
    return await asyncio.to_thread(state.metrics.text)


OPERATION_ROUTES: Final[tuple[Any, ...]] = (live, ready, metrics)


async def _storage_reasons(state: HealthState) -> list[Reason]:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await state.reads.run(state.datastore.heads)
    except TimeoutError:
        message = f"the storage did not answer within {READY_TIMEOUT_S} s"
    except Unavailable as error:
        message = str(error)
    except CellfeedError as error:
        message = f"{error.code}: {error}"
    else:
        return []
    return [Reason("storage-away", state.datastore.name, message)]
