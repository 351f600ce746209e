"""A MySQL server for tests, out of Debian's own packages: its stable release has MariaDB alone, its
unstable one has MySQL.

``python3 tests/support/mysql_packages.py`` fetches it. apt works with a configuration, lists and
a package database of its own, and the packages are unpacked, not installed. So nothing of the
system changes, and no right on it is needed. The server brings its own libc and loader.

Fetched once into ``~/.cache/cellfeed/mysql-server`` (``CELLFEED_CACHE`` names another folder); the
folder appears under its name only when it is complete, so a fetch that was cut off is repeated.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "mysql-server-core"

PREPARED: Final = ("--initialize-insecure", "--innodb-redo-log-capacity=8M")
"""How ``data`` in the folder was made, a data directory to be copied."""

_SUITE: Final = "sid"
_TIMEOUT_S: Final = 300
_NOT_NEEDED: Final = ("perl", "libperl", "openssl-provider", "libc-gconv", "libsasl2-modules")
"""Packages that these names begin are for the scripts beside the server."""

_APT: Final = """Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{folder}/sources";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "";
Debug::NoLocking "true";
Acquire::Retries "3";
Acquire::Languages "none";
"""


class MySqlUnavailable(Exception):
    """Why there is no MySQL server: no apt, no such package, no network."""


def mysql_directory() -> Path:
    """The folder in which the server's files are once they were fetched."""
    cache = os.environ.get("CELLFEED_CACHE") or Path.home() / ".cache" / "cellfeed"
    return Path(cache) / "mysql-server"


def mysqld_command(root: Path) -> list[str]:
    """The command of the server under ``root``, without its options; it runs by its own loader.
    Raises MySqlUnavailable where something of it is missing."""
    loader = next(iter(sorted((root / "usr").glob("lib*/**/ld-linux-*.so.*"))), None)
    server = root / "usr/sbin/mysqld"
    if loader is None or not server.is_file():
        raise MySqlUnavailable(
            "no MySQL server was fetched on this machine; `make services` fetches it on Debian"
        )
    libraries = [root / "usr/lib/mysql/private", loader.parent]
    return [
        str(loader),
        "--library-path",
        ":".join(map(str, libraries)),
        str(server),
        "--no-defaults",
        f"--basedir={root}/usr",
        f"--lc-messages-dir={root}/usr/share/mysql",
        f"--plugin-dir={root}/usr/lib/mysql/plugin",
        "--secure-file-priv=NULL",
        "--mysqlx=OFF",
    ]


def as_root() -> list[str]:
    """The option that root needs."""
    return ["--user=root"] if os.geteuid() == 0 else []


def fetch_mysql() -> Path:
    """The folder of the server, fetched where it is not there yet. Raises MySqlUnavailable with the
    reason."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise MySqlUnavailable(f"there is no {program} on this machine")
    target = mysql_directory()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "mysql.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                _fetch(Path(folder)).rename(target)
    return target


def _fetch(folder: Path) -> Path:
    for name in ("sources", "lists/partial", "cache/archives/partial", "unpacked"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    mirror = _run(
        [
            *("apt-get", "indextargets", "--format", "$(REPO_URI)"),
            *("Created-By: Packages", "Origin: Debian", "Label: Debian"),
        ]
    ).split()
    if not mirror:
        raise MySqlUnavailable("apt names no mirror of Debian here: run `apt-get update`")
    (folder / "sources/unstable.list").write_text(f"deb {mirror[0]} {_SUITE} main\n")
    (folder / "apt.conf").write_text(_APT.format(folder=folder))
    own = {"APT_CONFIG": str(folder / "apt.conf")}
    _run(["apt-get", "update", "-qq"], own)
    _run(
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "--download-only", PACKAGE],
        own,
    )
    root = folder / "unpacked"
    for package in sorted((folder / "cache/archives").glob("*.deb")):
        if not package.name.startswith(_NOT_NEEDED):
            _run(["dpkg-deb", "-x", str(package), str(root)])
    for each in (root / "usr/share").iterdir():
        if each.name != "mysql":
            shutil.rmtree(each)
    # A server that does not run here is as good as none.
    prepared = root / "data"
    _run([*mysqld_command(root), *as_root(), f"--datadir={prepared}", *PREPARED])
    for key in prepared.glob("*.pem"):  # a server that is to have TLS makes its own
        key.unlink()
    return root


def _run(command: list[str], more: dict[str, str] | None = None) -> str:
    try:
        return subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, **(more or {})},
        ).stdout
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip()[-300:]
        raise MySqlUnavailable(f"{command[0]} failed: {said}") from error
    except subprocess.TimeoutExpired as error:
        raise MySqlUnavailable(f"{command[0]} did not end within {_TIMEOUT_S} s") from error


if __name__ == "__main__":
    try:
        fetch_mysql()
    except (MySqlUnavailable, OSError) as error:
        sys.exit(f"no MySQL server: {error}")
