"""A MariaDB server as a local process: a storage node of a cluster.

The accounts of the configuration's node addresses are made with the data directory, before the
server has ever listened: there is no moment, and no account, without a password over TCP. ``root``
is the operating system's user only, through ``data/server.sock``. Started by root it runs as user
``mysql``, as its packages have it; started by anybody else as that user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pymysql
from pymysql.converters import escape_string

from cellfeed.servers.life import LOOPBACK, PROBE_TIMEOUT_S, program, run_to_end
from cellfeed.store.errors import Unavailable

PACKAGE: Final = "mariadb-server"
SERVICE_USER: Final = "mysql"
_ACCESS_DENIED: Final = 1045


@dataclass(frozen=True, slots=True)
class Account:
    """A user with every privilege, from anywhere that reaches the server (it listens on loopback
    only)."""

    user: str
    password: str


@dataclass(frozen=True)
class MariaDbServer:
    """``directory`` (absolute) gets ``data/`` and ``tmp/``; ``settings`` is a file of the server's
    own form. ``accounts``: at least one; the first one asks whether the server serves. ``options``
    come last."""

    name: str
    directory: Path
    port: int
    server_id: int
    settings: Path
    accounts: tuple[Account, ...]
    options: tuple[str, ...] = ()
    kind: str = "mariadb"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"mysql": self.port}

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        tmp = self.directory / "tmp"
        tmp.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            _check_open_to_service_user(self.directory, self.name)
            shutil.chown(tmp, SERVICE_USER)
        if self.data.exists():
            return
        # It gets its name when it is complete: a start that was killed leaves nothing that could be
        # taken for a data directory.
        unfinished = self.directory / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        install = [
            program("mariadb-install-db", self.name, PACKAGE),
            "--no-defaults",
            *self._user(),
            f"--datadir={unfinished}",
            f"--tmpdir={tmp}",
        ]
        socket_user = SERVICE_USER if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        install += [
            "--auth-root-authentication-method=socket",
            f"--auth-root-socket-user={socket_user}",
            "--skip-test-db",
            "--skip-name-resolve",
        ]
        run_to_end(install, f"{self.name}: initialising {self.data}")
        self._make_accounts(unfinished, tmp)
        unfinished.rename(self.data)

    def command(self) -> list[str]:
        return [
            program("mariadbd", self.name, PACKAGE),
            f"--defaults-file={self.settings}",
            *self._user(),
            f"--datadir={self.data}",
            f"--tmpdir={self.directory / 'tmp'}",
            # Within the data directory, which is the server's working directory: a path from the
            # root may be longer than a socket's name can be.
            "--socket=server.sock",
            "--pid-file=server.pid",
            f"--bind-address={LOOPBACK}",
            f"--port={self.port}",
            f"--server-id={self.server_id}",
            *self.options,
        ]

    def answers(self) -> bool:
        account = self.accounts[0]
        try:
            connection = pymysql.connect(
                host=LOOPBACK,
                port=self.port,
                user=account.user,
                password=account.password,
                # the server is this machine's own; a TLS context for each probe would cost as much
                # as its start
                ssl_disabled=True,
                connect_timeout=PROBE_TIMEOUT_S,
                read_timeout=PROBE_TIMEOUT_S,
                write_timeout=PROBE_TIMEOUT_S,
            )
        except pymysql.err.OperationalError as error:
            if error.args[0] == _ACCESS_DENIED:
                raise Unavailable(
                    f"{self.name} was made with another account than {account.user!r} with the"
                    " password that the configuration has now"
                ) from error
            return False
        with connection, connection.cursor() as cursor:
            try:
                cursor.execute("SELECT @@datadir")
                [(data,)] = cursor.fetchall()
            except pymysql.err.MySQLError:
                return False
        return Path(data) == self.data

    def _user(self) -> list[str]:
        return [f"--user={SERVICE_USER}"] if os.geteuid() == 0 else []

    def _make_accounts(self, data: Path, tmp: Path) -> None:
        # Bootstrap: the server executes its input, does not listen, and writes no binlog.
        statements = ["FLUSH PRIVILEGES;"]
        for each in self.accounts:
            account = f"'{escape_string(each.user)}'@'%'"
            statements += [
                f"CREATE OR REPLACE USER {account} IDENTIFIED BY '{escape_string(each.password)}';",
                f"GRANT ALL PRIVILEGES ON *.* TO {account} WITH GRANT OPTION;",
            ]
        command = [
            program("mariadbd", self.name, PACKAGE),
            "--no-defaults",
            *self._user(),
            "--bootstrap",
            f"--datadir={data}",
            f"--tmpdir={tmp}",
        ]
        run_to_end(command, f"{self.name}: making its accounts", "\n".join(statements) + "\n")


def _check_open_to_service_user(directory: Path, name: str) -> None:
    """Started by root the server runs as another user, which must be able to pass through every
    folder above its own."""
    try:
        user = pwd.getpwnam(SERVICE_USER)
    except KeyError:
        raise Unavailable(
            f"{name}: there is no user {SERVICE_USER} to run MariaDB as; Debian's package {PACKAGE}"
            " makes it"
        ) from None
    groups = os.getgrouplist(SERVICE_USER, user.pw_gid)
    for folder in (directory, *directory.parents):
        status = folder.stat()
        bit = (
            stat.S_IXUSR
            if status.st_uid == user.pw_uid
            else stat.S_IXGRP
            if status.st_gid in groups
            else stat.S_IXOTH
        )
        if not status.st_mode & bit:
            raise Unavailable(
                f"{name}: {folder} is closed to user {SERVICE_USER}, as whom MariaDB runs: chmod"
                f" o+x {folder}, or choose another run directory"
            )
