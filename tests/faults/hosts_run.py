"""One fault run on three hosts: writers and a Kafka consumer work from a fourth, billing charges,
and a host loses power, is cut off, or is slow. Afterwards every invariant is checked from outside.

``hosts-power``: every process of the master's host is killed at once, and its cable is dead; then
it is started again. ``hosts-cut``: the master's host is cut off, and everything on it runs.
``hosts-slow``: every byte to and from the servers of the master's host is late.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from typing import Final

from cellfeed.consumers.billing.charge_keys import GROUP
from cellfeed.store.errors import CellfeedError, Unavailable
from cellfeed.store.http.client import Client
from tests.faults.invariants import (
    check_gapless,
    check_log,
    check_reader,
    check_watermarks,
    merge,
    verdict,
)
from tests.faults.ledger import Ledger
from tests.faults.run import FaultRun, check_billing
from tests.faults.workload import KafkaReader, Writers, read_log
from tests.support.spread_instance import LEASE_S, SHARDS, SpreadInstance, spread_instance

ROUNDS: Final = 3
ROUNDS_BRIEF: Final = 1
RECOVERY_MAX_S: Final = 10.0 + LEASE_S
"""I21: ten seconds after the fault has healed, and a lease of a trigger."""

PROCEEDS_MAX_S: Final = 60.0
"""For so long no put may be acknowledged while a host is away: its failure is noticed by time-outs,
and a minion is promoted."""

SETTLE_S: Final = 60.0
SLOW_S: Final = 0.1
SLOW_FOR_S: Final = 6.0
PUT_PAUSE_S: Final = 0.05
_PROBE_S: Final = 2.0


def _power(system: SpreadInstance, name: str, proceeds: Callable[[], None]) -> str:
    killed = system.lose_power(name)
    if not killed or system.hosts[name].pids():
        raise RuntimeError(f"host {name} still runs: the fault did not happen")
    proceeds()
    system.power_on(name)
    system.wait_until_up(name)
    return f"host {name} lost power: {len(killed)} processes killed at once, started again"


def _cut(system: SpreadInstance, name: str, proceeds: Callable[[], None]) -> str:
    host = system.hosts[name]
    host.cut()
    running = len(host.pids())
    if _reaches(host.address):
        raise RuntimeError(f"host {name} is reached: the fault did not happen")
    proceeds()
    if _reaches(host.address) or len(host.pids()) < running // 2:
        raise RuntimeError(f"host {name} was reached, or ended: the fault did not last")
    host.heal()
    return f"host {name} was cut off with {running} processes running"


def _slow(system: SpreadInstance, name: str, proceeds: Callable[[], None]) -> str:
    system.delay(name, SLOW_S)
    began_s = time.monotonic()
    with system.opened() as found:
        found.datastore.heads()
    took_s = time.monotonic() - began_s
    if took_s < 2 * SLOW_S:
        raise RuntimeError(f"host {name} answered in {took_s:.3f} s: the fault did not happen")
    time.sleep(SLOW_FOR_S)
    proceeds()
    system.delay(name, 0)
    return f"the servers of host {name} were {SLOW_S} s late each way: a look took {took_s:.1f} s"


_FAULTS: Final = {"hosts-power": _power, "hosts-cut": _cut, "hosts-slow": _slow}
HOST_KINDS: Final = tuple(_FAULTS)


def run_host_faults(kind: str, seed: int, rounds: int = ROUNDS) -> FaultRun:
    """Runs and checks one kind. The master's host is hit first; later rounds may hit another one.
    Raises RuntimeError, with the reason, where there can be no hosts."""
    chance, result, ledger = random.Random(f"{kind}-{seed}"), FaultRun(kind, seed), Ledger()
    with spread_instance() as system, system.client(timeout_s=10.0) as client:
        reader = KafkaReader(system.bootstrap(), "trips", SHARDS, system.kafka_client)
        writers = Writers(
            system.urls,
            ledger,
            seed,
            PUT_PAUSE_S,
            access={"token_file": system.token_file, "ssl_ca": system.files.ca},
        )
        reader.start()
        writers.start()
        watermarks: list[dict[int, int]] = []
        try:
            _until_acknowledged(ledger, time.monotonic(), 20)
            _recovered(ledger, reader, time.monotonic())
            for number in range(rounds):
                time.sleep(chance.uniform(0.5, 1.5))
                master = system.master()
                name = master if number == 0 else chance.choice("abc")
                watermarks.append(_heads(client))
                began_s = time.monotonic()
                proceeds = lambda: _until_acknowledged(ledger, time.monotonic(), 20)  # noqa: E731
                result.witnessed.append(_FAULTS[kind](system, name, proceeds))
                healed_s = time.monotonic()
                result.operations_inside += ledger.acknowledged_between(began_s, healed_s)
                result.recovery_s.append(_recovered(ledger, reader, healed_s))
            writers.stop()
            _judge(result, system, client, reader, ledger, watermarks)
        finally:
            writers.stop()
            reader.stop()
    return result


def _judge(
    result: FaultRun,
    system: SpreadInstance,
    client: Client,
    reader: KafkaReader,
    ledger: Ledger,
    watermarks: list[dict[int, int]],
) -> None:
    late = [f"recovery took {each:.1f} s" for each in result.recovery_s if each > RECOVERY_MAX_S]
    if not _in_time(lambda: _billing_done(system)):
        late.append("billing has not come to the end of the logs")
    if not _in_time(lambda: _workers_agree(system)):
        late.append("not every worker shows the whole log")
    ends = _heads(client)
    if not reader.wait_for(ends, SETTLE_S):
        late.append("the consumer has not come to the end of the logs")
    log = read_log(client)
    watermarks.append({shard: len(cells) for shard, cells in log.items()})
    put_here = {
        shard: [cell for cell in cells if cell.column_name != "STATUS"]
        for shard, cells in log.items()
    }
    config = system.config("a")
    result.violations = merge(
        check_log(ledger, put_here),
        check_gapless(log),
        check_watermarks(watermarks),
        check_reader(log, reader.read, "consumer"),
        {"I7": list(reader.errors), "I21": late},
        verdict("billing", lambda: check_billing(system.billing, config, system.directory, log)),
    )


def _heads(client: Client) -> dict[int, int]:
    found: dict[int, int] = {}

    def read() -> bool:
        found.update({shard: head.watermark for shard, head in client.heads().items()})
        return True

    if not _in_time(read):
        raise RuntimeError(f"no worker gives the heads within {SETTLE_S} s")
    return found


def _workers_agree(system: SpreadInstance) -> bool:
    """Whether each worker shows the heads that the storage has: one that was cut off with the old
    master may show older ones for a moment."""
    with system.opened() as found:
        heads = found.datastore.heads()
    for name in system.workers:
        with system.client([name], timeout_s=5.0) as client:
            if client.heads() != heads:
                return False
    return True


def _billing_done(system: SpreadInstance) -> bool:
    with system.opened() as found:
        offsets = found.coordinator.fetch_offsets(GROUP)
        return all(
            ("trips", shard) in offsets and offsets["trips", shard].offset >= head.watermark
            for shard, head in found.datastore.heads().items()
            if head.watermark
        )


def _reaches(address: str) -> bool:
    try:
        with socket.create_connection((address, 17443), _PROBE_S):
            return True
    except OSError:
        return False


def _until_acknowledged(ledger: Ledger, since_s: float, count: int) -> None:
    """Waits for so many acknowledgements of puts that began after a moment."""

    def acknowledged() -> bool:
        puts = [put for put in list(ledger.puts) if put.begun_s >= since_s and put.acknowledged]
        return len(puts) >= count

    if not _in_time(acknowledged, PROCEEDS_MAX_S):
        raise RuntimeError(f"not {count} puts are acknowledged within {PROCEEDS_MAX_S} s")


def _recovered(ledger: Ledger, reader: KafkaReader, healed_s: float) -> float:
    """Seconds until a put that began after the healing is acknowledged and read by the consumer;
    the limit and more when it is not."""

    def is_read() -> bool:
        fresh = [put for put in list(ledger.puts) if put.begun_s >= healed_s and put.acknowledged]
        return any(
            reader.read[put.shard] and reader.read[put.shard][-1].added_id >= put.added_id
            for put in fresh[:20]
            if put.shard is not None and put.added_id is not None
        )

    return time.monotonic() - healed_s if _in_time(is_read) else 2 * RECOVERY_MAX_S


def _in_time(done: Callable[[], bool], limit_s: float = SETTLE_S) -> bool:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            if done():
                return True
        except (CellfeedError, Unavailable):
            pass
        time.sleep(0.05)
    return False
