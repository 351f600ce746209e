"""The matrix of rights: every API of the gateway, in every version that it advertises, asked by
principals with every set of rights.

``rights/`` says for each API which rights it asks for, in which order, and the answer without
each. An API, or a version, without a row fails. Requests go as frames through the gateway's own
parser, handler and writer; only the socket is left out, so that a principal costs nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from time import monotonic
from typing import Any, Final, NamedTuple

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway.apis import api_01_fetch
from cellfeed.bridge.gateway.apis.advertised import APIS, FLEXIBLE_FROM
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.bridge.gateway.wire.fetch_request import read_fetch
from cellfeed.bridge.gateway.wire.protocol import read_head, read_request, write_response
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.security.access import Security
from cellfeed.store.security.users import allow, list_users, put_user
from tests.clients.rights.group_rows import GROUP_ROWS
from tests.clients.rights.log_rows import LOG_ROWS, fetched
from tests.clients.rights.other_rows import OTHER_ROWS
from tests.clients.rights.principals import (
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    GROUP,
    NO_GROUP,
    NO_TOPIC,
    OTHER_GROUP,
    OTHER_TOPIC,
    PRINCIPALS,
    RIGHTS,
    TOPIC,
    USER,
    Principal,
)
from tests.clients.rights.rows import (
    ALLOWED,
    COMMITTED,
    NO_TOPIC_RIGHT,
    ROW_KEY,
    SHARD,
    TOPIC_IDS,
    Row,
)
from tests.support.raw_requests import decoded, encoded, head_bytes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway rights")]


NAMES = (TOPIC, OTHER_TOPIC, "trips.NOTES", GROUP, OTHER_GROUP, USER)


SESSION_S = 30.0


ROWS: Final = {**LOG_ROWS, **GROUP_ROWS, **OTHER_ROWS}
"""All of them, by the API's key."""


VERSIONS: Final = [
    (key, version)
    for key, api in APIS.items()
    for version in range(api.versions[0], api.versions[1] + 1)
]


def rows_of(key: int, version: int) -> list[Row]:
    return [row for row in ROWS.get(key, []) if row.versions[0] <= version <= row.versions[1]]


class Running(NamedTuple):
    """A gateway in this process. ``run`` runs a coroutine on its loop."""

    context: GatewayContext
    state: StateTable
    offsets: StoreCoordinator
    run: Callable[[Coroutine[Any, Any, Any]], Any]

    async def ask(self, key: int, version: int, values: dict[str, Any], principal: str) -> bytes:
        """The answer's frame without its length."""
        frame = head_bytes(key, version) + encoded(key, version, values)
        head = read_head(frame, FLEXIBLE_FROM)
        peer = Peer(head.client_id, "127.0.0.1", version, "default", principal, 1, monotonic())
        read = read_fetch if key == api_01_fetch.KEY else read_request
        result = await APIS[key].handle(self.context, read(frame, head), head, peer)
        answer = b"".join(result) if isinstance(result, list) else write_response(head, result)
        assert struct.unpack(">i", answer[:4]) == (len(answer) - 4,)
        return answer[4:]

    def commit(self) -> None:
        """Commits the group's offsets again: in partitions of its own topic and of another."""
        self.offsets.commit_offsets(
            GROUP,
            {
                (TOPIC, SHARD): CommittedOffset(COMMITTED),
                (OTHER_TOPIC, SHARD): CommittedOffset(COMMITTED),
            },
        )
        self.offsets.commit_offsets(OTHER_GROUP, {(TOPIC, SHARD): CommittedOffset(COMMITTED)})

    def committed(self) -> dict[tuple[str, int], int]:
        return {place: offset.offset for place, offset in self.offsets.fetch_offsets(GROUP).items()}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway under test")
    thread.start()

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    with Datastore.open_embedded(tmp_path_factory.mktemp("rights"), shards=1) as datastore:
        for column in ("BASE", "NOTES"):
            datastore.put_cell(ROW_KEY, column, 1, {"fare": 3}).or_raise()
        put_user(datastore.state, USER, "correct horse, battery", is_new=True)
        for acl in (acl for principal in PRINCIPALS for acl in principal.acls):
            allow(datastore.state, acl)
        offsets = StoreCoordinator(datastore.state)
        gateway = Gateway(
            datastore,
            offsets,
            GatewayConfig(
                port=0, registry_port=0, group_initial_delay_s=0, session_timeout_s=SESSION_S
            ),
        )
        run(gateway.start())
        context = gateway.context
        assert context is not None
        try:
            wait_until(
                lambda: (
                    context.cluster.coordinates(GROUP) and context.cluster.coordinates(OTHER_GROUP)
                ),
                "the gateway coordinates both groups",
            )
            context.topics.refresh()
            TOPIC_IDS.update({topic.name: topic.topic_id for topic in context.topics.all()})
            yield Running(context, datastore.state, offsets, run)
        finally:
            run(gateway.stop())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            offsets.close()


def test_every_api_and_version_has_a_row() -> None:
    assert set(ROWS) == set(APIS), "an API without a row, or a row without an API"
    assert [place for place in VERSIONS if not rows_of(*place)] == []


def test_every_right_is_asked_for_by_an_api_and_every_set_of_them_is_tried() -> None:
    assert {right for rows in ROWS.values() for row in rows for right, _ in row.needs} == set(
        RIGHTS
    )
    assert {principal.held for principal in PRINCIPALS} == {
        frozenset(each) for count in range(6) for each in itertools.combinations(RIGHTS, count)
    }


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_only_users_with_the_right_are_answered(running: Running, key: int, version: int) -> None:
    for row in rows_of(key, version):
        values = row.ask(version)
        running.commit()
        before = running.committed()
        for principal in PRINCIPALS:
            about = (
                f"{APIS[key].handle.__module__} version {version}, {row.about}: {principal.name}"
            )
            answer = running.run(running.ask(key, version, values, principal.name))
            assert row.told(decoded(key, version, answer), principal) == row.expected(principal), (
                about
            )
            _shows_no_name(answer, values, principal, about)
            if row.changes:
                changed = running.committed() != before
                assert changed == (row.expected(principal) == ALLOWED), about
                if changed:
                    assert running.committed().get((OTHER_TOPIC, SHARD), COMMITTED) == COMMITTED, (
                        about
                    )
                    running.commit()
        assert running.committed() == before


def _shows_no_name(answer: bytes, values: dict[str, Any], principal: Principal, about: str) -> None:
    """No name is in an answer that the principal may not describe, and has not asked for."""
    visible = {TOPIC} if principal.has(DESCRIBE_TOPIC) else set()
    visible |= {GROUP} if principal.has(DESCRIBE_GROUP) else set()
    own = {acl.pattern.rstrip("*") for acl in principal.acls}
    for name in {*NAMES} - visible - principal.beside - own:
        if name not in repr(values) and not any(
            name in seen for seen in visible | principal.beside | own
        ):
            assert name.encode() not in answer, f"{about}: shown {name}"


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (key, version)
        for key, version in VERSIONS
        if any(row.needs for row in rows_of(key, version))
    ],
)
def test_a_user_without_a_right_cannot_learn_whether_a_name_exists(
    running: Running, key: int, version: int
) -> None:
    """The answer about a topic or group that is there is the one about one that is not, byte for
    byte."""
    nobody = next(principal for principal in PRINCIPALS if not principal.acls)
    absent_id = type(TOPIC_IDS[TOPIC])(int=TOPIC_IDS[TOPIC].int ^ 1)
    for row in rows_of(key, version):
        values = row.ask(version)
        swapped = _swapped(values, {TOPIC: NO_TOPIC, GROUP: NO_GROUP, TOPIC_IDS[TOPIC]: absent_id})
        there, absent = (
            running.run(running.ask(key, version, each, nobody.name)) for each in (values, swapped)
        )
        for name, instead in (
            (TOPIC.encode(), NO_TOPIC.encode()),
            (GROUP.encode(), NO_GROUP.encode()),
            (TOPIC_IDS[TOPIC].bytes, absent_id.bytes),
        ):
            there = there.replace(name, instead)
        assert there == absent, row.about


def _swapped(value: Any, names: dict[Any, Any]) -> Any:
    if isinstance(value, dict):
        return {field: _swapped(each, names) for field, each in value.items()}
    if isinstance(value, list):
        return [_swapped(each, names) for each in value]
    return names.get(value, value) if not isinstance(value, bool | int | bytes) else value


def test_a_user_sees_its_own_rights_and_no_others(running: Running) -> None:
    shown = decoded(50, 0, running.run(running.ask(50, 0, {"users": None}, USER)))
    assert [each.user for each in shown.results] == [USER]
    acls = decoded(29, 1, running.run(running.ask(29, 1, ROWS[29][0].ask(1), USER)))
    assert acls.resources == ()


def test_only_without_users_and_without_acls_everything_is_allowed(running: Running) -> None:
    guarded = running.context.security
    [user] = [each for each in list_users(running.state) if each.name == USER]
    told = {}
    try:
        for users, acls in itertools.product(
            ({}, {USER: user}), (frozenset(), frozenset(PRINCIPALS[-1].acls))
        ):
            running.context.security = Security(users, acls, b"")
            answer = running.run(running.ask(1, 12, ROWS[1][0].ask(12), "ANONYMOUS"))
            told[bool(users), bool(acls)] = fetched(decoded(1, 12, answer), PRINCIPALS[0])
    finally:
        running.context.security = guarded
    assert told == {
        (False, False): ALLOWED,
        (False, True): NO_TOPIC_RIGHT,
        (True, False): NO_TOPIC_RIGHT,
        (True, True): NO_TOPIC_RIGHT,
    }


def test_a_right_on_a_column_is_one_on_the_topic_that_shows_it(running: Running) -> None:
    peer = Peer("client", "127.0.0.1", 1, "default", "reads a column", 1, monotonic())
    topics = (TOPIC, OTHER_TOPIC, "trips.NOTES", NO_TOPIC)
    found = [running.context.may(peer, "topic", topic, "read") for topic in topics]
    assert found == [False, True, False, False]


def test_the_gateway_knows_the_acls_of_the_matrix(running: Running) -> None:
    for principal in PRINCIPALS:
        assert set(running.context.security.acls_of(principal.name)) == set(principal.acls)
