"""A running gateway and thousands of peers that send what no client sends, while good clients work beside them.

The seed is in ``CELLFEED_FUZZ_SEED`` or fixed, and is told by every failure.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from bridge.gateway.limits import FRAME_BYTES_MAX
from store.datastore import Datastore
from tests.clients.drivers import DRIVERS
from tests.clients.running_gateway import GatewayProcess
from tests.clients.trips_log import SHARDS, expected_records, fill
from tests.faults.invariants import check_reader
from tests.faults.workload import KafkaReader, seen_cell
from tests.fuzz.gateway_frames import api_versions_request, expects_no_more, mutations, valid_frames, with_length

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway-fuzz")]

SEED = int(os.environ.get("CELLFEED_FUZZ_SEED", "20261121"))
WARM_UP_FRAMES = 1_500
FRAMES = 8_000
LETTING_GO_S = 20.0
"""How long the gateway may take until it has let go of a peer that is gone; far below FRAME_TIMEOUT_S, which is for peers that stay."""

ANSWER_PATIENCE_S = 0.1
"""How long a peer waits for an answer: most come at once; of the fetches and the group requests some wait for longer than this."""

GROWTH_BYTES_MAX = 32 << 20
"""What may be added to the memory by a few thousand bad frames: nothing that grows with their number. One hostile length alone claims 2 GiB."""


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


def peers_of(process: psutil.Process) -> set[int]:
    """The far ports of the gateway's open Kafka connections."""
    return {each.raddr.port for each in process.net_connections("tcp") if each.raddr and each.status == psutil.CONN_ESTABLISHED}


def open_connections(gateway: GatewayProcess) -> int:
    return sum(each.laddr.port == gateway.port and each.status != psutil.CONN_LISTEN for each in gateway.process.net_connections("tcp"))


def sockets_of(process: psutil.Process) -> int:
    """Descriptors that are sockets. Files are left out: each thread opens the store's when it first reads."""
    count = 0
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += str(descriptor.readlink()).startswith("socket:")
    return count


def send_mutations(gateway: GatewayProcess, chance: random.Random, count: int) -> tuple[Counter[str], Counter[str]]:
    """Each frame on a connection of its own; how many were sent and how many answered, by mutation. The peer then says that no more comes, so
    whatever was sent the gateway has to let go."""
    sent: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for number, (kind, data) in enumerate(mutations(chance, count)):
        with connect(gateway) as peer:
            with suppress(ConnectionError):
                peer.sendall(data)
                # A peer that closes at once is not answered: what asks for an answer is given a moment, so that the handlers see it too.
                if expects_no_more(data):
                    answered[kind] += _is_answered(peer)
                peer.shutdown(socket.SHUT_WR)
            assert_let_go(peer, f"seed {SEED}, frame {number} ({kind}) {data[:200].hex()}")
        sent[kind] += 1
    return sent, answered


def _is_answered(peer: socket.socket) -> bool:
    peer.settimeout(ANSWER_PATIENCE_S)
    try:
        return bool(peer.recv(1 << 16))
    except TimeoutError:
        return False
    finally:
        peer.settimeout(LETTING_GO_S)


class Writer(threading.Thread):
    """Puts cells all the time: the readers beside the garbage have something to follow."""

    def __init__(self, datastore: Datastore) -> None:
        super().__init__(daemon=True)
        self._datastore = datastore
        self._ended = threading.Event()
        self.written = 0

    def run(self) -> None:
        while not self._ended.wait(0.01):
            self._datastore.put_cell(uuid.uuid4(), "BASE", 1, {"number": self.written})
            self.written += 1

    def stop(self) -> None:
        self._ended.set()
        self.join(30)


def test_thousands_of_mutated_frames_cost_their_connections_and_nothing_else(gateway: GatewayProcess, tmp_path: Path) -> None:
    print(f"CELLFEED_FUZZ_SEED={SEED}")
    chance = random.Random(SEED)
    process = gateway.process
    with ExitStack() as stack:
        datastore = stack.enter_context(Datastore.open_embedded(tmp_path / "store"))
        reader, writer = KafkaReader(gateway.bootstrap, "trips", SHARDS), Writer(datastore)
        steady = stack.enter_context(connect(gateway))
        reader.start()
        stack.callback(reader.stop)
        writer.start()
        stack.callback(writer.stop)

        # What the process holds for good (schemas, plans, kept blocks) it holds after some of the frames.
        send_mutations(gateway, chance, WARM_UP_FRAMES)
        ends = {shard: head.watermark for shard, head in datastore.heads().items()}
        assert reader.wait_for(ends, LETTING_GO_S), "the reader follows"
        assert_answers(steady, 1)
        wait_until(lambda: open_connections(gateway) == len(peers_of(process)), lambda: "half-closed connections are left")
        rss_before, sockets_before, peers_before, written_before = process.memory_info().rss, sockets_of(process), peers_of(process), writer.written

        sent, answered = send_mutations(gateway, chance, FRAMES)

        assert_answers(steady, 2)
        assert sum(sent.values()) == FRAMES
        assert len(sent) == 11
        assert answered["valid"] > sent["valid"] // 2, "the handlers were asked, not only the checks before them"
        assert 0 < answered["flipped"] < sent["flipped"]
        assert gateway.process.pid == process.pid
        assert process.is_running()
        wait_until(lambda: sockets_of(process) <= sockets_before, lambda: f"seed {SEED}: {sockets_of(process)} sockets, {sockets_before} before")
        assert peers_before <= peers_of(process), f"seed {SEED}: a good client lost its connection"
        grown = process.memory_info().rss - rss_before
        assert grown < GROWTH_BYTES_MAX, f"seed {SEED}: {grown >> 20} MiB more than before"
        assert writer.written > written_before, "the writer worked during the frames"

        writer.stop()
        ends = {shard: head.watermark for shard, head in datastore.heads().items()}
        assert reader.wait_for(ends, LETTING_GO_S), f"seed {SEED}: the reader did not come to the end"
        log = {shard: [seen_cell(cell) for cell in datastore.get_cells_for_shard(shard, 0, 10_000).cells] for shard in ends}
        assert {shard: len(cells) for shard, cells in log.items()} == ends
        found = check_reader(log, reader.read, "beside the garbage")
        assert not any(found.values()), f"seed {SEED}: {found}"
        assert reader.errors == []
    log_text = (tmp_path / "gateway.log").read_text()
    assert "Traceback" not in log_text, f"seed {SEED}: {log_text[log_text.index('Traceback') - 300 :][:3_000]}"
    assert "connection from 127.0.0.1 closed" in log_text, "what the peers sent was refused in words"


def test_a_group_reads_every_record_while_peers_stop_half_way(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Two hundred peers that began a frame and sent no more, each with its own idea of how long it is."""
    chance = random.Random(SEED)
    expected = expected_records(tmp_path / "store")["trips"]
    rss_before = gateway.process.memory_info().rss
    with ExitStack() as stack:
        for _ in range(200):
            peer = stack.enter_context(connect(gateway))
            frame = with_length(chance.choice(valid_frames()[:20]))
            claims_much = struct.pack(">i", FRAME_BYTES_MAX) + frame
            peer.sendall(chance.choice([frame[: chance.randint(1, len(frame) - 1)], claims_much]))
        wait_until(lambda: open_connections(gateway) == 200, lambda: f"{open_connections(gateway)} connections")
        received = DRIVERS["confluent-kafka"].read_in_group(gateway.bootstrap, "trips", "beside", len(expected))
        assert sorted(received) == expected
        assert open_connections(gateway) >= 200, "the halves were there all the time"
        grown = gateway.process.memory_info().rss - rss_before
        assert grown < 200 * FRAME_BYTES_MAX // 4, f"{grown >> 20} MiB were taken for frames of which a few bytes came"
    wait_until(lambda: open_connections(gateway) == 0, lambda: f"{open_connections(gateway)} connections are left")
    assert "Traceback" not in (tmp_path / "gateway.log").read_text()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", 0x7FFFFFFF), id="a length of 2 GiB"),
        pytest.param(struct.pack(">i", -1), id="a negative length"),
        pytest.param(struct.pack(">i", 0), id="no frame at all"),
        pytest.param(struct.pack(">i", FRAME_BYTES_MAX + 1), id="one byte too many"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64, id="a TLS greeting"),
        pytest.param(with_length(struct.pack(">hhih", 4, 0, 7, -1)), id="an API that is not spoken"),
        pytest.param(with_length(struct.pack(">hhih", 3, 99, 7, -1)), id="a version that is not spoken"),
        pytest.param(with_length(struct.pack(">hhihi", 3, 1, 7, -1, 0x7FFFFFFF)), id="2 billion topics"),
        pytest.param(with_length(struct.pack(">hhih", 3, 1, 7, 500) + b"x"), id="a client id longer than its frame"),
    ],
)
def test_garbage_is_let_go_at_once_and_the_connection_beside_it_goes_on(shared: GatewayProcess, data: bytes) -> None:
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


def test_answers_come_in_the_order_of_the_requests_however_many_are_sent_ahead(shared: GatewayProcess) -> None:
    with connect(shared) as peer:
        peer.sendall(b"".join(map(api_versions_request, range(500))))
        assert [struct.unpack_from(">i", read_answer(peer))[0] for _ in range(500)] == list(range(500))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway over an empty store, for what only one connection is about."""
    directory = tmp_path_factory.mktemp("fuzz")
    with GatewayProcess(directory / "store", directory / "gateway.log") as running:
        yield running
