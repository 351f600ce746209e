"""A running gateway and many thousand peers that send frames no client sends, beside good clients:
a writer, a reader by assignment, a group of two libraries, and a connection that asks the same
thing all the time.

The verdict: the process lives, without a traceback; every peer was let go; memory, sockets,
descriptors and threads are where they were; the good clients got every record once (I7, I8, I14,
I20) and every answer in time.
"""

from __future__ import annotations

import multiprocessing
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from cellfeed.bridge.gateway.limits import FRAME_BYTES_MAX, FRAME_TIMEOUT_S
from cellfeed.store.datastore import Datastore
from tests.faults.gateway_system import StoreWriter
from tests.faults.group_clients import KafkaPythonMember
from tests.faults.group_members import GroupLedger, GroupMember, check_group
from tests.faults.invariants import Violations, check_log, check_reader, merge
from tests.faults.ledger import Ledger
from tests.faults.workload import KafkaReader, seen_cell
from tests.fuzz.gateway_frames import valid_frames, with_length
from tests.fuzz.peers import LETTING_GO_S, Sent, send_batch
from tests.support.raw_requests import encoded, head_bytes
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS, fill

GROUP: Final = "good-clients"
GROWTH_BYTES_MAX: Final = 32 << 20
"""The memory that any number of bad frames may add: nothing that grows with their number. One
hostile length alone claims 2 GiB."""

ANSWER_MAX_S: Final = 30.0
"""Longest that a good client may wait for an answer: beside a hundred busy peers on a busy machine,
and no hang."""

_BATCH: Final = 2_000
_WARM_UP: Final = 3_000
_HALF_WAY: Final = 100
_SETTLE_S: Final = 60.0
_CATCH_UP_S: Final = 90.0
_PUT_EVERY_S: Final = 0.03
_BLOCKS_BYTES_MAX: Final = 4 << 20
"""Of kept blocks: full before the first look at the memory, so that the log's growth does not
count."""

_FILES_OF_A_THREAD: Final = 4
"""Of SQLite: the store, the state table and their logs, which each thread opens when it first
reads."""

_THREADS_LATER: Final = 16
"""Of pools that start a thread when all that they have are at work, which may come after the
warm-up; no pool grows beyond its size."""


@dataclass
class FuzzRun:
    """The result of a run; ``as_json`` is its summary line."""

    seed: int
    sent: Sent = field(default_factory=Sent)
    seconds: float = 0.0
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The gateway's memory and sockets before and after: bytes of memory, sockets, descriptors,
    threads."""
    answer_ms: dict[str, float] = field(default_factory=dict)
    """Of the good client that asks all the time: percentiles of its waits."""
    written: int = 0
    violations: Violations = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.sent.frames > 0 and self.written > 0 and not any(self.violations.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "passed": self.passed,
            "frames": self.sent.frames,
            "seconds": round(self.seconds),
            "by_mutation": dict(self.sent.by_mutation),
            "by_delivery": dict(self.sent.by_delivery),
            "answered": dict(self.sent.answered),
            "held_before_and_after": self.held,
            "answer_ms": {name: round(each, 1) for name, each in self.answer_ms.items()},
            "cells_put_meanwhile": self.written,
            "violations": {name: found[:5] for name, found in self.violations.items() if found},
        }


def run_gateway_fuzz(
    seed: int,
    frames: int,
    directory: Path,
    tell: Callable[[str], None],
    only_batch: int | None = None,
) -> FuzzRun:
    """Sends ``frames`` in batches (or one batch of them alone) and checks. ``tell`` learns how far
    it is."""
    result = FuzzRun(seed)
    fill(directory / "store")
    with ExitStack() as stack:
        gateway = stack.enter_context(
            GatewayProcess(
                directory / "store", directory / "gateway.log", blocks_bytes_max=_BLOCKS_BYTES_MAX
            )
        )
        clients = stack.enter_context(good_clients(directory / "store", gateway))
        pool = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        process = gateway.process
        # Some of the frames make the process load the parts (schemas, plans, threads, kept blocks)
        # that it keeps for good.
        warm = pool.submit(send_batch, gateway.port, seed, -1, min(_WARM_UP, frames)).result()
        half_way = stack.enter_context(_half_way_peers(gateway.port, seed))
        clients.follow()
        before = _held(
            process, gateway.port, settled=lambda: _strangers(process, gateway.port) == _HALF_WAY
        )
        clients.probe.waits_s.clear()
        written, began_s = len(clients.puts.puts), time.monotonic()
        for batch in [only_batch] if only_batch is not None else range(-(-frames // _BATCH)):
            count = min(_BATCH, frames - batch * _BATCH) if only_batch is None else _BATCH
            result.sent.add(pool.submit(send_batch, gateway.port, seed, batch, count).result())
            tell(
                f"{result.sent.frames} frames,"
                f" {result.sent.frames / (time.monotonic() - began_s):.0f}/s,"
                f" {process.memory_info().rss >> 20} MiB"
            )
        result.seconds = time.monotonic() - began_s
        waits_s = clients.probe.waits_s.copy()
        result.written = len(clients.puts.puts) - written
        let_go = _are_let_go(half_way, result.seconds)
        after = _held(process, gateway.port, settled=lambda: not _strangers(process, gateway.port))
        result.held = {
            name: (getattr(before, name), getattr(after, name)) for name in _Held._fields
        }
        result.answer_ms = _percentiles(waits_s)
        result.violations = merge(
            {
                "peers": _counted([*warm.failures, *result.sent.failures, *let_go]),
                "held": _more_than_before(before, after),
            },
            _alive(gateway, process, directory / "gateway.log"),
            _handlers_were_asked(result.sent),
            {
                "answers": (
                    [f"a good client waited {max(waits_s):.1f} s for an answer"]
                    if max(waits_s) > ANSWER_MAX_S
                    else []
                )
            },
            clients.check(),
        )
    return result


# --- the good ones --------------------------------------------------------------------------------


class Probe(threading.Thread):
    """One connection that asks for the beginning of a partition, again and again. Raises nothing:
    ``error`` says why it ended."""

    def __init__(self, port: int) -> None:
        super().__init__(name="probe", daemon=True)
        self._peer = socket.create_connection(("127.0.0.1", port), timeout=2 * ANSWER_MAX_S)
        self._ended = threading.Event()
        self.waits_s: list[float] = []
        self.error: str | None = None
        each = {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": 0,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 14,
        }
        fetch = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 14,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": "trips", "partitions": [each]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        self._request = with_length(head_bytes(1, 11) + encoded(1, 11, fetch))

    def run(self) -> None:
        try:
            with self._peer, self._peer.makefile("rb") as answers:
                while not self._ended.wait(0.02):
                    began_s = time.monotonic()
                    self._peer.sendall(self._request)
                    [size] = struct.unpack(">i", answers.read(4))
                    if len(answers.read(size)) != size:
                        raise ConnectionError("the answer was cut")
                    self.waits_s.append(time.monotonic() - began_s)
        except (OSError, struct.error) as error:
            self.error = f"the connection that asks all the time ended: {error}"

    def stop(self) -> None:
        self._ended.set()
        self.join(3 * ANSWER_MAX_S)


class GoodClients:
    """Started; ``check`` stops the writer and compares everybody's records with the log."""

    def __init__(self, datastore: Datastore, gateway: GatewayProcess, stack: ExitStack) -> None:
        self._datastore = datastore
        self.puts, self._group = Ledger(), GroupLedger()
        self.probe = Probe(gateway.port)
        self._reader = KafkaReader(gateway.bootstrap, "trips", SHARDS)
        self._writer = StoreWriter(datastore, self.puts, _PUT_EVERY_S)
        strategy = "roundrobin"
        members = (
            GroupMember(
                gateway.bootstrap, "trips", GROUP, "confluent-kafka", self._group, strategy
            ),
            KafkaPythonMember(gateway.bootstrap, "trips", GROUP, "kafka-python", self._group),
        )
        for thread in (self._writer, self._reader, self.probe, *members):
            thread.start()
            stack.callback(thread.stop)

    def follow(self) -> None:
        """Returns when the reader and the group have come to where the log is now."""
        ends = self._ends()
        if not self._reader.wait_for(ends, _CATCH_UP_S) or not self._committed(ends):
            raise RuntimeError(
                f"the good clients did not come to {ends}: {self._group.acknowledged},"
                f" {self._group.errors[-3:]}, {self.probe.error}"
            )

    def check(self) -> Violations:
        self._writer.stop()
        ends = self._ends()
        late = (
            []
            if self._reader.wait_for(ends, _CATCH_UP_S)
            else ["the reader by assignment did not come to the end"]
        )
        late += (
            []
            if self._committed(ends)
            else [f"the group did not come to the end: {self._group.acknowledged} of {ends}"]
        )
        log = {
            shard: [seen_cell(cell) for cell in self._cells(shard, end)]
            for shard, end in ends.items()
        }
        lost = self.probe.error
        return merge(
            check_reader(log, self._reader.read, "beside the garbage"),
            check_log(
                self.puts,
                {
                    shard: [cell for cell in cells if cell.ref_key == 1]
                    for shard, cells in log.items()
                },
            ),
            check_group(self._group, ends),
            {
                "I8": late,
                "errors": [*self._reader.errors, *self._group.errors, *([lost] if lost else [])],
            },
        )

    def _ends(self) -> dict[int, int]:
        return {shard: head.watermark for shard, head in self._datastore.heads().items()}

    def _cells(self, shard: int, end: int) -> Iterator[Any]:
        location = 0
        while location < end:
            piece = self._datastore.get_cells_for_shard(shard, location, 5_000)
            yield from piece.cells
            location = piece.next_location

    def _committed(self, ends: dict[int, int]) -> bool:
        deadline_s = time.monotonic() + _CATCH_UP_S
        while time.monotonic() < deadline_s:
            with self._group.lock:
                if all(
                    self._group.acknowledged.get(shard, 0) >= end for shard, end in ends.items()
                ):
                    return True
            time.sleep(0.1)
        return False


@contextmanager
def good_clients(store: Path, gateway: GatewayProcess) -> Iterator[GoodClients]:
    """At work inside the block."""
    with ExitStack() as stack:
        datastore = stack.enter_context(Datastore.open_embedded(store))
        yield GoodClients(datastore, gateway, stack)


# --- what the gateway holds -----------------------------------------------------------------------


class _Held(NamedTuple):
    memory_bytes: int
    sockets: int
    descriptors: int
    threads: int


def _held(process: psutil.Process, port: int, settled: Callable[[], bool]) -> _Held:
    """Once the connections are as expected, or after _SETTLE_S as they are."""
    deadline_s = time.monotonic() + _SETTLE_S
    while not settled() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    strangers = _strangers(process, port)
    descriptors = [str(each) for each in _descriptors(process)]
    sockets = sum(each.startswith("socket:") for each in descriptors)
    return _Held(
        process.memory_info().rss,
        sockets - strangers,
        len(descriptors) - strangers,
        process.num_threads(),
    )


def _descriptors(process: psutil.Process) -> Iterator[Path]:
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield descriptor.readlink()


def _strangers(process: psutil.Process, port: int) -> int:
    """Connections of peers: a socket that listens, or comes from 127.0.0.1, is not theirs."""
    found = process.net_connections("tcp")
    return sum(
        each.laddr.port == port and bool(each.raddr) and each.raddr.ip.startswith("127.0.1.")
        for each in found
    )


def _more_than_before(before: _Held, after: _Held) -> list[str]:
    found = (
        [f"{(after.memory_bytes - before.memory_bytes) >> 20} MiB more than before"]
        if after.memory_bytes - before.memory_bytes > GROWTH_BYTES_MAX
        else []
    )
    more = {
        "sockets": 0,
        "descriptors": _FILES_OF_A_THREAD * (before.threads + _THREADS_LATER),
        "threads": _THREADS_LATER,
    }
    return found + [
        f"{getattr(after, name)} {name}, {getattr(before, name)} before"
        for name, allowed in more.items()
        if getattr(after, name) > getattr(before, name) + allowed
    ]


def _alive(gateway: GatewayProcess, process: psutil.Process, log: Path) -> Violations:
    if not process.is_running() or gateway.process.pid != process.pid:
        return {"crash": ["the gateway has ended"]}
    text = log.read_text()
    at = text.find("Traceback")
    said = [] if at < 0 else [text[max(at - 300, 0) : at + 3_000]]
    quiet = [] if " closed: " in text else ["nothing that the peers sent was refused in words"]
    return {"crash": said, "no fault": quiet}


@contextmanager
def _half_way_peers(port: int, seed: int) -> Iterator[list[socket.socket]]:
    """Peers that begin a frame and then send nothing, each with its own idea of how long it is."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        peers = []
        for number in range(_HALF_WAY):
            peer = stack.enter_context(
                socket.create_connection(
                    ("127.0.0.1", port), LETTING_GO_S, (f"127.0.1.{number + 1}", 0)
                )
            )
            frame = with_length(chance.choice(valid_frames()))
            peer.sendall(
                chance.choice(
                    [
                        frame[: chance.randint(1, len(frame) - 1)],
                        struct.pack(">i", FRAME_BYTES_MAX) + frame,
                    ]
                )
            )
            peers.append(peer)
        yield peers


def _are_let_go(peers: list[socket.socket], seconds: float) -> list[str]:
    """Those that are still held although they have been silent for longer than a frame may take.
    All of them are closed in the end."""
    held = 0
    for peer in peers:
        with suppress(ConnectionError):
            peer.settimeout(LETTING_GO_S if seconds > FRAME_TIMEOUT_S else 0.0)
            try:
                while peer.recv(1 << 16):
                    pass
            except (TimeoutError, BlockingIOError):
                held += seconds > FRAME_TIMEOUT_S
        peer.close()
    return (
        [f"{held} peers that stopped half-way were not let go after {FRAME_TIMEOUT_S} s"]
        if held
        else []
    )


def _handlers_were_asked(sent: Sent) -> Violations:
    """Or the run has shown nothing but the checks before them. Half of the valid requests may wait
    for data that does not come, or be gone before."""
    few = 3 * sent.answered["valid"] < sent.by_mutation["valid"]
    return {
        "no fault": (
            [f"{sent.answered['valid']} of {sent.by_mutation['valid']} valid frames were answered"]
            if few
            else []
        )
    }


def _counted(found: list[str]) -> list[str]:
    return [f"{len(found)} in all", *found] if found else []


def _percentiles(waits_s: list[float]) -> dict[str, float]:
    ordered = sorted(waits_s)
    return {
        name: 1000 * ordered[int(part * (len(ordered) - 1))]
        for name, part in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0))
    }
