"""Fixtures that every kind of test may use."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, core, settings

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import clear_failpoints
from tests import in_memory
from tests.faults.seeds import VARIABLE as FAULT_SEED
from tests.faults.seeds import default_seed, pytest_report_header
from tests.support import local_mariadb, local_mysql
from tests.support.local_mariadb import MariaDB
from tests.support.local_mysql import MySql
from tests.support.local_zookeeper import ZooKeeper
from tests.support.server_source import ServerSource, server_source

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run that a shell has begun in the background ignores Ctrl-C; so would all that it starts and
    # must end.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Java servers and tools of tests live for seconds: compiling their code well, and collecting
# garbage in parallel, costs more than it brings.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
)
in_memory.use_memory()
os.environ.setdefault(FAULT_SEED, str(default_seed()))  # the workers' too, also past midnight

__all__ = ["pytest_report_header"]


def _refuse_default_ports(event: str, args: tuple[object, ...]) -> None:
    """Two tests that bind a port of the product's defaults fail each other, now and then. The
    first one that does so fails here, each time."""
    if event == "socket.bind" and isinstance(args[1], tuple) and args[1][1] in DEFAULT_PORTS:
        raise AssertionError(f"a test binds the default port {args[1][1]}: ask for port 0")


DEFAULT_PORTS = (7420, 7480, 8081, 9092)
sys.addaudithook(_refuse_default_ports)

settings.register_profile(
    "fast",
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "quick",
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "deep",
    max_examples=2000,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

pytest_plugins = ("pytester", "tests.skip_policy", "tests.run_summary", "tests.turns")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """The seed of the order is Hypothesis' seed too, so one number repeats a run."""
    seed = getattr(config.option, "randomly_seed", None)
    if seed is not None and core.global_force_seed is None:
        core.global_force_seed = seed


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live as long as the run. Looking through them for garbage, again and again
    while they become more, is half of the work of collecting them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # libraries look for their own leaks at the end


def pytest_sessionfinish(exitstatus: int) -> None:
    """The files of a run in which a test failed stay for a while."""
    if exitstatus == pytest.ExitCode.OK:
        atexit.register(in_memory.remove_own)


@pytest.fixture(autouse=True)
def _no_failpoints_left() -> Iterator[None]:
    """A failpoint armed by one test must never act in the next."""
    yield
    clear_failpoints()


@pytest.fixture(scope="module", autouse=True)
def _no_stores_left() -> Iterator[None]:
    """A store that a test has left open is not asked for dictionaries by the tests of the next
    module: its server may be gone until then."""
    yield
    known_dictionaries._sources.clear()


@pytest.fixture
def no_other_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only stores that the test itself opens are asked for dictionaries: an earlier test may have
    left connections open that use them, or do not answer."""
    monkeypatch.setattr(known_dictionaries, "_sources", [])


@pytest.fixture(scope="session")
def servers_from() -> ServerSource:
    """Where servers come from that tests only use: containers, or local processes."""
    return server_source()


@pytest.fixture(scope="session")
def mariadb_server(servers_from: ServerSource) -> Iterator[MariaDB]:
    """One MariaDB server for the tests of this process that only need some server. Skips, with the
    reason, where none can be had."""
    with servers_from.mariadb() as server:
        yield server


@pytest.fixture
def empty_mariadb(mariadb_server: MariaDB) -> MariaDB:
    """The server without any database of an earlier test."""
    local_mariadb.drop_all_databases(mariadb_server)
    return mariadb_server


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySql]:
    """One MySQL server, and on it an account with the fewest rights; for the tests of this process
    that run on both. Skips, with the reason, where none can be had."""
    if reason := local_mysql.why_not():
        pytest.skip(reason)
    with local_mysql.running_mysql(user="cellfeed") as server:
        yield server


@pytest.fixture
def empty_mysql(mysql_server: MySql) -> MySql:
    """The server without any database of an earlier test."""
    local_mariadb.drop_all_databases(mysql_server)
    return mysql_server


@pytest.fixture(scope="session")
def zookeeper_server(servers_from: ServerSource) -> Iterator[ZooKeeper]:
    """One ZooKeeper for the tests of this process that only need some server; each uses a chroot of
    its own. Skips, with the reason, where there is none."""
    with servers_from.zookeeper() as server:
        yield server


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    """An empty embedded datastore ``trips`` of 16 shards."""
    with Datastore.open_embedded(tmp_path / "store") as opened:
        yield opened
