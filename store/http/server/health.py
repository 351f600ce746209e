"""``/health``, ``/health/live``, ``/health/ready`` and ``/metrics``."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from litestar import get
from litestar.response import Response

from cellfeed.store.background import troubles
from cellfeed.store.errors import CellfeedError, Unavailable
from cellfeed.store.http.server.handlers import ReadState
from cellfeed.store.http.server.metrics import METRICS_MEDIA_TYPE, WorkerMetrics

READY_TIMEOUT_S: Final = 2.0
"""A storage that does not answer within this is not ready: far above any healthy read, below the
usual probe's own patience."""


class HealthMessage(msgspec.Struct):
    """``live``: the process answers. ``ready``: so does its storage, and its loops run."""

    live: bool
    ready: bool
    datastore: str
    reason: str | None = None


class HealthState(ReadState):
    """The read state with the worker's counters."""

    metrics: WorkerMetrics


@get("/health/live", tags=["operation"], summary="Whether the process answers", opt={"query": ()})
async def live(state: HealthState) -> HealthMessage:
    """Always 200: no answer means not alive. Says nothing of the storage."""
    return HealthMessage(live=True, ready=True, datastore=state.datastore.name)


@get(
    ["/health", "/health/ready"],
    tags=["operation"],
    summary="Whether the storage answers",
    opt={"query": ()},
)
async def ready(state: HealthState) -> Response[HealthMessage]:
    """200 when the engine answered a read just now and no loop of the worker is dead, else 503 with
    the reason."""
    reason = await _unready_reason(state)
    message = HealthMessage(
        live=True, ready=reason is None, datastore=state.datastore.name, reason=reason
    )
    return Response(message, status_code=200 if reason is None else 503)


@get(
    "/metrics",
    tags=["operation"],
    summary="Metrics for Prometheus",
    media_type=METRICS_MEDIA_TYPE,
    response_class=Response,
    opt={"query": ()},
)
async def metrics(state: HealthState) -> bytes:
    """The Prometheus text form: this worker's counts and, with clusters, the state of their nodes
    and watermarks."""
    # Not among the reads: metrics are wanted most when those are all waiting for a storage that
    # hangs.
    return await asyncio.to_thread(state.metrics.text)


OPERATION_ROUTES: Final[tuple[Any, ...]] = (live, ready, metrics)


async def _unready_reason(state: HealthState) -> str | None:
    if found := troubles():
        return "; ".join(found)
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await state.reads.run(state.datastore.heads)
    except TimeoutError:
        return f"the storage did not answer within {READY_TIMEOUT_S} s"
    except Unavailable as error:
        return str(error)
    except CellfeedError as error:
        return f"{error.code}: {error}"
    return None
