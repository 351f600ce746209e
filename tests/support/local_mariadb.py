"""Real MariaDB servers as local processes for tests, started as ``cellfeed up`` starts them: one
data directory that is prepared once in a process; copied for each server (0.3 s instead of 2 s),
and a ``root`` without a password."""

from __future__ import annotations

import atexit
import functools
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql

from cellfeed.servers.configured import SHIPPED_SETTINGS
from cellfeed.servers.life import await_answer, check_ports_free, launch, program
from cellfeed.servers.mariadb import PACKAGE, Account, MariaDbServer
from cellfeed.store.engines.mysql.address import MySqlAddress, parse_mysql_url
from cellfeed.store.errors import Unavailable
from tests.support.free_ports import free_port

SETTINGS = SHIPPED_SETTINGS / "mariadb.cnf"
ROOT_ACCOUNT = Account("root", "")
SMALL = ("--performance-schema=OFF", "--innodb-buffer-pool-size=64M")
"""Many of them run beside each other."""


def why_not() -> str | None:
    """Why no MariaDB can be started here; None when it can."""
    try:
        for name in ("mariadbd", "mariadb-install-db"):
            program(name, "tests", PACKAGE)
    except Unavailable as missing:
        return str(missing)
    return None


@functools.cache
def _prepared_data_directory() -> Path:
    """A fresh data directory, to be copied. Gone when the process ends."""
    parent = Path(tempfile.mkdtemp(prefix="cellfeed-mariadb-prepared-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    parent.chmod(0o755)
    server = MariaDbServer("prepared", parent / "prepared", 0, 1, SETTINGS, (ROOT_ACCOUNT,))
    server.prepare()
    return server.data


@dataclass
class MariaDB:
    """One server on loopback. ``start`` returns when it answers; ``kill`` is kill -9 and waits
    until the pid is gone."""

    directory: Path
    server_id: int = 1
    port: int = field(default_factory=free_port)
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}"

    @property
    def address(self) -> MySqlAddress:
        return parse_mysql_url(self.url)

    def start(self) -> None:
        self.launch()
        self.wait_until_it_answers()

    def launch(self) -> None:
        """Starts it and does not wait."""
        check_ports_free(self._server)
        self._server.prepare()
        self.process = launch(self._server, self._log)

    def wait_until_it_answers(self) -> None:
        assert self.process is not None
        await_answer(self._server, self.process, self._log)

    @property
    def _server(self) -> MariaDbServer:
        return MariaDbServer(
            "mariadb",
            self.directory,
            self.port,
            self.server_id,
            SETTINGS,
            (ROOT_ACCOUNT,),
            (*SMALL, *self.options),
        )

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; nothing when it does not run."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs statements as root; the rows of the last one."""
        with (
            pymysql.connect(
                host="127.0.0.1", port=self.port, user="root", autocommit=True, ssl_disabled=True
            ) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


def new_server(
    directory: Path, server_id: int = 1, options: tuple[str, ...] = (), *, sparse: bool = True
) -> MariaDB:
    """A server with an empty data directory, not started yet. ``sparse``: blocks of zeros take no
    room, and no writing, until something is written there; not where the disk is to become full:
    then a server takes all its room from the start."""
    directory.mkdir(parents=True)
    subprocess.run(
        [
            "cp",
            "-a",
            f"--sparse={'always' if sparse else 'never'}",
            str(_prepared_data_directory()),
            str(directory / "data"),
        ],
        check=True,
    )
    return MariaDB(directory, server_id, options=options)


def drop_all_databases(server: MariaDB) -> None:
    """Drops every database but the server's own."""
    with (
        pymysql.connect(
            host="127.0.0.1", port=server.port, user="root", ssl_disabled=True
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SHOW DATABASES")
        for (name,) in cursor.fetchall():
            if name not in ("mysql", "information_schema", "performance_schema", "sys"):
                cursor.execute(f"DROP DATABASE `{name}`")


@contextmanager
def running(options: tuple[str, ...] = ()) -> Iterator[MariaDB]:
    """A server with a directory of its own, which is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-mariadb-"))
    directory.chmod(0o755)
    server = new_server(directory / "node", options=options)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)
