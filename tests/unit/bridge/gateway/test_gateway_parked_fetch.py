"""A fetch that waits, with a session and without: a change of its answer ends the wait, or is in
the answer."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.context import GatewayContext
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.store.datastore import Datastore
from cellfeed.store.security.access import Security
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.users import allow
from tests.support.session_client import SessionClient, ask, fetch_request, partitions_of
from tests.unit.bridge.gateway.test_gateway_connection import connect, fetch, leave, with_gateway

WHO = "User:reader"
LONG_MS = 60_000
SHARDS = 4
RIGHTS = frozenset({Acl(WHO, "topic", "trips", "read"), Acl(WHO, "topic", "trips.BASE", "read")})
Act = Callable[[Datastore, GatewayContext], Coroutine[Any, Any, None]]


async def put(datastore: Datastore, context: GatewayContext) -> None:
    for result in datastore.put_cells([(UUID(int=1 << 64), "BASE", 2, {"n": 2})]):
        result.or_raise()
    await context.heads.refresh()


async def trim(datastore: Datastore, context: GatewayContext) -> None:
    shard = next(s for s, head in datastore.heads().items() if head.watermark)
    datastore.trim(shard, 1)
    await context.heads.refresh()


async def erase(datastore: Datastore, context: GatewayContext) -> None:
    datastore.erase_row(UUID(int=1 << 64))
    await context.heads.refresh()


async def promote(_datastore: Datastore, context: GatewayContext) -> None:
    head = context.heads[0]
    context.heads._take({0: head._replace(leader_epoch=head.leader_epoch + 1)})


async def refuse(_datastore: Datastore, context: GatewayContext) -> None:
    context.security = Security({}, RIGHTS - {Acl(WHO, "topic", "trips", "read")}, b"")
    context.kept_fetches.wake()


def parked(tmp_path: Path, act: Act, *, has_session: bool) -> dict[tuple[str, int], Any]:
    """The answer, by partition, to a fetch that waited before ``act``."""
    found: dict[tuple[str, int], Any] = {}

    async def use(gateway: Gateway) -> None:
        assert gateway.context is not None
        context = gateway.context
        context.security = Security({}, RIGHTS, b"")
        await put_first(datastore, context)
        client = SessionClient(context, 77, WHO)
        client.positions = {
            (topic, shard): context.heads[shard].watermark
            for topic in ("trips", "trips.BASE")
            for shard in range(SHARDS)
        }
        await client.fetch()

        async def fetch_once() -> None:
            if has_session:
                await client.fetch(max_wait_ms=LONG_MS)
                found.update(client.view)
                return
            request = fetch_request(client.positions.items(), max_wait_ms=LONG_MS)
            for each, answer in partitions_of(await ask(context, request, 78, WHO)).items():
                found[each] = (answer.error_code, answer.high_watermark, answer.log_start_offset)

        waiting = asyncio.create_task(fetch_once())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await act(datastore, context)
        await asyncio.wait_for(waiting, 20)

    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as datastore:
        with_gateway(datastore, use)
    return found


async def put_first(datastore: Datastore, context: GatewayContext) -> None:
    for result in datastore.put_cells([(UUID(int=1 << 64), "BASE", 1, {"n": 1})]):
        result.or_raise()
    await context.heads.refresh()


@pytest.mark.parametrize("has_session", [True, False])
def test_new_cells_and_erasures_end_a_wait(tmp_path: Path, has_session: bool) -> None:
    for number, act in enumerate((put, erase)):
        found = parked(tmp_path / str(number), act, has_session=has_session)
        assert sum(watermark == 2 for _, watermark, _ in found.values()) == 2


@pytest.mark.parametrize("has_session", [True, False])
def test_a_right_that_is_taken_away_ends_a_wait(tmp_path: Path, has_session: bool) -> None:
    found = parked(tmp_path, refuse, has_session=has_session)
    assert {topic: error for (topic, _), (error, _, _) in found.items()} == {
        "trips": ErrorCode.topic_authorization_failed,
        "trips.BASE": ErrorCode.none,
    }


def test_a_parked_fetch_at_a_trimmed_offset_is_answered_with_the_next_cells(tmp_path: Path) -> None:
    async def trim_and_put(datastore: Datastore, context: GatewayContext) -> None:
        await trim(datastore, context)
        await put(datastore, context)

    found = parked(tmp_path, trim_and_put, has_session=True)
    assert sum(start == 1 for _, _, start in found.values()) == 2


def test_a_promotion_makes_a_session_look_at_its_partitions_again(tmp_path: Path) -> None:
    async def promote_and_put(datastore: Datastore, context: GatewayContext) -> None:
        kept = context.kept_fetches._kept[77]
        await promote(datastore, context)
        assert 0 in kept._watch.changed
        await put(datastore, context)

    assert parked(tmp_path, promote_and_put, has_session=True)


def test_a_right_that_an_operator_takes_away_reaches_a_fetch_that_waits(tmp_path: Path) -> None:
    """Through the state table, as the gateway looks at it."""

    async def deny(datastore: Datastore, _context: GatewayContext) -> None:
        allow(datastore.state, Acl(WHO, "topic", "trips.BASE", "read"))

    found = parked(tmp_path, deny, has_session=True)
    assert found[("trips", 0)][0] is ErrorCode.topic_authorization_failed
    assert found[("trips.BASE", 0)][0] is ErrorCode.none


def test_no_parked_fetch_of_a_closed_connection_is_kept(datastore: Datastore) -> None:
    async def use(gateway: Gateway) -> None:
        assert gateway.context is not None
        kept = gateway.context.kept_fetches
        peer = await connect(gateway)
        peer[1].write(fetch(wait_ms=1))
        [size] = struct.unpack(">i", await peer[0].readexactly(4))
        await peer[0].readexactly(size)
        assert kept.partitions == 1
        await leave(peer)
        async with asyncio.timeout(10):
            while kept.partitions:  # noqa: ASYNC110 - nothing says that a connection has ended
                await asyncio.sleep(0.01)
        assert gateway.context.heads._watches == {}

    with_gateway(datastore, use)


def test_changes_found_for_disconnected_callers_are_not_lost(datastore: Datastore) -> None:
    async def use(gateway: Gateway) -> None:
        assert gateway.context is not None
        context = gateway.context
        for result in datastore.put_cells([(UUID(int=1 << 64), "BASE", 1, {"n": 1})]):
            result.or_raise()
        looking = asyncio.create_task(context.heads.refresh())
        await asyncio.sleep(0)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        async with asyncio.timeout(10):
            while not sum(context.heads[shard].watermark for shard in range(datastore.shards)):
                await context.heads.refresh()

    with_gateway(datastore, use)
