"""A gateway's memory of fetches changes no answer, through all events of logs, of rights and of the
gateway. A consumer with a session knows the same as a full fetch would give to a new client. One
that repeats full fetches gets the very same bytes. Nothing is skipped, nothing comes twice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.context import GatewayContext
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.store.datastore import Datastore
from cellfeed.store.security.access import Security
from cellfeed.store.security.rights import Acl
from tests.support.session_client import (
    Partition,
    SessionClient,
    ask,
    fetch_request,
    partitions_of,
)
from tests.unit.bridge.gateway.test_gateway_connection import with_gateway

SHARDS = 3
WHO = "User:reader"
SESSION, REPEATED = 1_000_001, 1_000_002
TOPICS = ("trips", "trips.BASE", "trips.LATER")
"""The last one is there from its first cell on."""
PARTITIONS = [(topic, shard) for topic in TOPICS for shard in range(SHARDS)] + [("trips", 77)]
FEW_BYTES = 1
MOVES = (
    "put",
    "put",
    "put later column",
    "trim",
    "erase",
    "rights",
    "ask",
    "forget",
    "seek",
    "evict",
    "fetch",
    "fetch",
    "fetch few",
    "lost answer",
)


class Run:
    """One gateway, its store, and the two consumers."""

    def __init__(self, datastore: Datastore, context: GatewayContext, random: Random) -> None:
        self._datastore = datastore
        self._context = context
        self._random = random
        self._rows = 0
        self._fresh = 2_000_000
        self.session = SessionClient(context, SESSION, WHO)

    async def move(self, what: str) -> None:
        await getattr(self, what.replace(" ", "_"))()

    async def check(self) -> None:
        """Both consumers against one that asks for the first time."""
        client = self.session
        await client.fetch()
        if client.refused is not ErrorCode.none:
            await client.fetch()  # as every client does: all of it again
        assert client.refused is ErrorCode.none
        plain = await self._plain(client.positions)
        assert client.view == {
            each: (found.error_code, found.high_watermark, found.log_start_offset)
            for each, found in plain.items()
        }
        assert client.records == {
            each: bytes(found.records) for each, found in plain.items() if found.records
        }
        positions = list(client.positions.items())
        turn = self._random.randrange(len(positions)) if positions else 0
        request = fetch_request(positions[turn:] + positions[:turn])
        request = request._replace(is_committed=self._random.random() < 0.1)
        fresh = b"".join(await ask(self._context, request, self._next(), WHO))
        assert b"".join(await ask(self._context, request, REPEATED, WHO)) == fresh

    async def put(self, column: str = "BASE") -> None:
        for _ in range(self._random.randint(1, 3)):
            self._rows += 1
            row = UUID(int=self._rows << 64)
            for result in self._datastore.put_cells([(row, column, self._rows, {"n": self._rows})]):
                result.or_raise()
        await self._context.heads.refresh()

    async def put_later_column(self) -> None:
        await self.put("LATER")

    async def trim(self) -> None:
        shard = self._random.randrange(SHARDS)
        head = self._context.heads[shard]
        self._datastore.trim(shard, self._random.randint(head.log_start, head.watermark))
        await self._context.heads.refresh()

    async def erase(self) -> None:
        self._datastore.erase_row(UUID(int=self._random.randint(1, self._rows) << 64))
        await self._context.heads.refresh()

    async def rights(self) -> None:
        rules = [
            Acl(WHO, "topic", topic, operation)
            for topic in TOPICS
            for operation in ("read", "describe")
            if self._random.random() < 0.7
        ]
        self._context.security = self._random.choice(
            [Security({}, frozenset(), b""), Security({}, frozenset(rules), b"")]
        )

    async def ask(self) -> None:
        for each in self._random.sample(PARTITIONS, self._random.randint(1, 5)):
            self.session.positions.setdefault(each, 0)

    async def forget(self) -> None:
        for each in self._some():
            del self.session.positions[each]

    async def seek(self) -> None:
        for each in self._some():
            self.session.positions[each] = self._random.randint(0, self._rows + 1)

    async def evict(self) -> None:
        self._context.kept_fetches.left(self._random.choice([SESSION, REPEATED]))

    async def fetch(self) -> None:
        await self.session.fetch()
        self.session.advance(self._some())

    async def fetch_few(self) -> None:
        await self.session.fetch(FEW_BYTES)
        assert len(self.session.records) <= 1
        self.session.advance(self._some())

    async def lost_answer(self) -> None:
        """The client does not know its records, and says so."""
        await self.session.fetch()
        self.session._session = (self.session._session[0], 0)

    async def drain(self) -> None:
        """With one batch at a time everybody comes to the end of every log."""
        client = self.session
        self._context.security = Security({}, frozenset(), b"")
        client.positions = {
            (topic, shard): self._context.heads[shard].log_start
            for topic in TOPICS[:2]
            for shard in range(SHARDS)
        }
        for _ in range(self._rows * 2 + 40):
            await client.fetch(FEW_BYTES)
            client.advance(client.positions)
        ends = {each: self._context.heads[each[1]].watermark for each in client.positions}
        assert client.positions == ends

    def _some(self) -> list[Partition]:
        there = list(self.session.positions)
        return self._random.sample(there, self._random.randint(0, len(there)))

    async def _plain(self, positions: dict[Partition, int]) -> dict[Partition, Any]:
        request = fetch_request(positions.items())
        return partitions_of(await ask(self._context, request, self._next(), WHO))

    def _next(self) -> int:
        self._fresh += 1
        self._context.kept_fetches.left(self._fresh - 1)
        return self._fresh


def run_moves(seed: int, moves: list[str]) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Datastore.open_embedded(Path(directory), shards=SHARDS) as datastore,
    ):

        async def use(gateway: Gateway) -> None:
            assert gateway.context is not None
            run = Run(datastore, gateway.context, Random(seed))
            for what in ["put", "ask", *moves]:
                await run.move(what)
                await run.check()
            await run.drain()

        with_gateway(datastore, use)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 30), st.lists(st.sampled_from(MOVES), min_size=10, max_size=30))
def test_answers_with_kept_fetches_equal_the_models(seed: int, moves: list[str]) -> None:
    run_moves(seed, moves)
