"""A running gateway and thousands of peers that send frames no client sends, while good clients
work beside them.

The seed is in ``CELLFEED_FUZZ_SEED`` or fixed, and is reported by every failure.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from cellfeed.bridge.gateway.limits import FRAME_BYTES_MAX
from tests.fuzz.gateway_frames import api_versions_request, valid_frames, with_length
from tests.fuzz.lengths import length_places, with_a_lie
from tests.support.drivers import DRIVERS
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import expected_records, fill

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway-fuzz")]

SEED = int(os.environ.get("CELLFEED_FUZZ_SEED", "20261121"))
FRAMES = 1_200
ROOT = Path(__file__).parents[2]
LETTING_GO_S = 20.0
"""How long the gateway may take until it has let go of a peer that is gone; far below
FRAME_TIMEOUT_S, which is for peers that stay."""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    fill(tmp_path / "store")
    with GatewayProcess(tmp_path / "store", tmp_path / "gateway.log") as running:
        yield running


def connect(gateway: GatewayProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=LETTING_GO_S)


def read_answer(peer: socket.socket) -> bytes:
    """One whole frame, without its length."""
    [size] = struct.unpack(">i", _exactly(peer, 4))
    return _exactly(peer, size)


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = peer.recv(size - len(data))
        assert piece, f"the gateway closed the connection after {len(data)} of {size} bytes"
        data += piece
    return data


def assert_answers(peer: socket.socket, correlation_id: int) -> None:
    peer.sendall(api_versions_request(correlation_id))
    answer = read_answer(peer)
    assert struct.unpack_from(">ih", answer) == (correlation_id, 0)


def assert_let_go(peer: socket.socket, what: str) -> None:
    """The gateway closes the connection, by itself or because the peer has."""
    try:
        while peer.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass  # closed while bytes of ours were unread
    except TimeoutError:
        pytest.fail(f"{what}: the connection is still open after {LETTING_GO_S} s")


def wait_until(done: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline_s = time.monotonic() + LETTING_GO_S
    while not done():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.05)


def open_connections(gateway: GatewayProcess) -> int:
    return sum(
        each.laddr.port == gateway.port and each.status != psutil.CONN_LISTEN
        for each in gateway.process.net_connections("tcp")
    )


def test_thousands_of_mutated_frames_only_close_their_own_connections() -> None:
    """``python -m tests.fuzz gateway`` in small, as a process of its own: kafka-python warns of
    sockets that it leaves."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "gateway",
        "--frames",
        str(FRAMES),
        "--seed",
        str(SEED),
    ]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=220, check=False
    )
    assert ended.stdout, ended.stderr
    result = json.loads(ended.stdout)
    assert result["violations"] == {}
    assert ended.returncode == 0
    assert result["frames"] == FRAMES
    assert len(result["by_mutation"]) == 12
    assert len(result["by_delivery"]) == 6
    assert 0 < result["answered"]["flipped"] < result["by_mutation"]["flipped"], (
        "the handlers were asked, not only the checks before them"
    )


def test_every_length_of_a_valid_frame_is_found_and_can_lie() -> None:
    chance = random.Random(SEED)
    for frame in valid_frames():
        places = length_places(frame)
        assert all(before.at + before.size <= after.at for before, after in pairwise(places))
        assert places[-1].at + places[-1].size <= len(frame)
        assert with_a_lie(chance, frame) != frame


def test_a_group_reads_every_record_while_peers_stop_half_way(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    """Two hundred peers that began a frame and then sent nothing, each with its own idea of how
    long it is."""
    chance = random.Random(SEED)
    expected = expected_records(tmp_path / "store")["trips"]
    rss_before = gateway.process.memory_info().rss
    with ExitStack() as stack:
        for _ in range(200):
            peer = stack.enter_context(connect(gateway))
            frame = with_length(chance.choice(valid_frames()[:20]))
            claims_much = struct.pack(">i", FRAME_BYTES_MAX) + frame
            peer.sendall(chance.choice([frame[: chance.randint(1, len(frame) - 1)], claims_much]))
        wait_until(
            lambda: open_connections(gateway) == 200,
            lambda: f"{open_connections(gateway)} connections",
        )
        received = DRIVERS["confluent-kafka"].read_in_group(
            gateway.bootstrap, "trips", "beside", len(expected)
        )
        assert sorted(received) == expected
        assert open_connections(gateway) >= 200, "the halves were there all the time"
        grown = gateway.process.memory_info().rss - rss_before
        assert grown < 200 * FRAME_BYTES_MAX // 4, (
            f"{grown >> 20} MiB were taken for frames with only a few bytes sent"
        )
    wait_until(
        lambda: open_connections(gateway) == 0,
        lambda: f"{open_connections(gateway)} connections are left",
    )
    assert "Traceback" not in (tmp_path / "gateway.log").read_text()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", 0x7FFFFFFF), id="a length of 2 GiB"),
        pytest.param(struct.pack(">i", -1), id="a negative length"),
        pytest.param(struct.pack(">i", 0), id="no frame at all"),
        pytest.param(struct.pack(">i", FRAME_BYTES_MAX + 1), id="one byte too many"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n", id="HTTP"),
        pytest.param(
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64, id="a TLS greeting"
        ),
        pytest.param(
            with_length(struct.pack(">hhih", 4, 0, 7, -1)), id="an API that is not spoken"
        ),
        pytest.param(
            with_length(struct.pack(">hhih", 3, 99, 7, -1)), id="a version that is not spoken"
        ),
        pytest.param(
            with_length(struct.pack(">hhihi", 3, 1, 7, -1, 0x7FFFFFFF)), id="2 billion topics"
        ),
        pytest.param(
            with_length(struct.pack(">hhih", 3, 1, 7, 500) + b"x"),
            id="a client id longer than its frame",
        ),
    ],
)
def test_a_connection_that_sends_garbage_is_closed_at_once_and_the_one_beside_it_continues(
    shared: GatewayProcess, data: bytes
) -> None:
    with connect(shared) as steady, connect(shared) as peer:
        assert_answers(steady, 1)
        peer.sendall(data)
        assert_let_go(peer, "without a word more from the peer")
        assert_answers(steady, 2)


def test_a_request_that_comes_byte_by_byte_is_answered(shared: GatewayProcess) -> None:
    with connect(shared) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for correlation_id in (1, 2):
            for byte in api_versions_request(correlation_id):
                peer.sendall(bytes([byte]))
                time.sleep(0.005)
            assert struct.unpack_from(">ih", read_answer(peer)) == (correlation_id, 0)


def test_answers_have_the_order_of_the_requests_however_many_are_sent_ahead(
    shared: GatewayProcess,
) -> None:
    with connect(shared) as peer:
        peer.sendall(b"".join(map(api_versions_request, range(500))))
        assert [struct.unpack_from(">i", read_answer(peer))[0] for _ in range(500)] == list(
            range(500)
        )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway over an empty store, for tests of a single connection."""
    directory = tmp_path_factory.mktemp("fuzz")
    with GatewayProcess(directory / "store", directory / "gateway.log") as running:
        yield running
