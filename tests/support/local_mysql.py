"""Real MySQL servers as local processes for tests, beside the MariaDB servers of
:mod:`tests.support.local_mariadb`: one data directory, which was fetched with the server, is copied
for each, and has a ``root`` without a password."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pymysql

from cellfeed.store.engines.mysql.address import MySqlAddress, parse_mysql_url
from tests.support.local_mariadb import MariaDB
from tests.support.mysql_packages import MySqlUnavailable, as_root, mysql_directory, mysqld_command

START_TIMEOUT_S: Final = 60.0

_DURABLE: Final = (
    "--innodb-flush-log-at-trx-commit=1",
    "--sync-binlog=1",
    "--max-allowed-packet=64M",
)
WITH_GTIDS: Final = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON")
WITHOUT_TLS: Final = (
    "--auto-generate-certs=OFF",
    "--caching-sha2-password-auto-generate-rsa-keys=OFF",
)
_SMALL: Final = (
    "--performance-schema=OFF",
    "--innodb-buffer-pool-size=64M",
    "--innodb-redo-log-capacity=8M",
    "--skip-name-resolve",
    "--table-open-cache=2000",
)

EMPTY: Final = {"mysql": "empty_mariadb", "mysql server": "empty_mysql"}
"""The engines of the contract that are servers, each with the fixture that empties it."""

MINIMAL_GRANTS: Final = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX"
    " ON `{datastore}\\_%`.* TO '{user}'@'%'"
)
"""The grants of the guide: an account with these alone runs everything on a managed server."""


def why_not() -> str | None:
    """Why no MySQL can be started here; None when it can."""
    try:
        mysqld_command(mysql_directory())
    except (MySqlUnavailable, OSError) as missing:
        return str(missing)
    return None


@dataclass
class MySql(MariaDB):
    """As :class:`~tests.support.local_mariadb.MariaDB`; the files are those of :func:`new_mysql`.
    ``user``: of ``url``; ``root`` has every right."""

    user: str = "root"

    @property
    def url(self) -> str:
        return f"mysql://{self.user}@127.0.0.1:{self.port}"

    @property
    def address(self) -> MySqlAddress:
        """Root's is that of a server of our own, another account's a managed endpoint."""
        return parse_mysql_url(self.url, managed=self.user != "root")

    def launch(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*_command(self.directory / "data"), *self._options()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_it_answers(self) -> None:
        end_s = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise AssertionError(f"MySQL did not start: {self._log.read_text()[-2000:]}")
            try:
                self.sql("SELECT 1")
            except pymysql.err.OperationalError:
                time.sleep(0.05)
            else:
                return

    def _options(self) -> Sequence[str]:
        return (
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--server-id={self.server_id}",
            "--socket=server.sock",
            "--pid-file=server.pid",
            f"--init-file={self.directory / 'accounts.sql'}",
            *_DURABLE,
            *_SMALL,
            *self.options,
        )


def new_mysql(
    directory: Path,
    options: tuple[str, ...] = (*WITH_GTIDS, *WITHOUT_TLS),
    *,
    user: str = "root",
    datastore: str = "trips",
) -> MySql:
    """A server with an empty data directory, not started yet. ``user``: another account than root
    gets :data:`MINIMAL_GRANTS` on the datastore's databases."""
    directory.mkdir(parents=True)
    data = directory / "data"
    subprocess.run(["cp", "-a", "--sparse=always", mysql_directory() / "data", data], check=True)
    (data / "auto.cnf").unlink(missing_ok=True)  # the server's own id
    accounts = [
        "CREATE USER IF NOT EXISTS root@'%'",
        "GRANT ALL PRIVILEGES ON *.* TO root@'%' WITH GRANT OPTION",
    ]
    if user != "root":
        accounts += [
            f"CREATE USER IF NOT EXISTS '{user}'@'%'",
            "GRANT " + MINIMAL_GRANTS.format(datastore=datastore, user=user),
        ]
    (directory / "accounts.sql").write_text("".join(f"{each};\n" for each in accounts))
    return MySql(directory, options=options, user=user)


@contextmanager
def running_mysql(
    options: tuple[str, ...] = (*WITH_GTIDS, *WITHOUT_TLS), *, user: str = "root"
) -> Iterator[MySql]:
    """A server with a directory of its own, which is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-mysql-"))
    server = new_mysql(directory / "node", options, user=user)
    try:
        server.start()
        yield server
    finally:
        server.resume()
        server.kill()
        shutil.rmtree(directory)


def _command(data: Path) -> list[str]:
    return [*mysqld_command(mysql_directory()), *as_root(), f"--datadir={data}"]
