"""An endpoint as a managed service gives it, for tests: one address, behind which another server
can take the place of the first one."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cellfeed.assembly.datastore import open_datastore
from cellfeed.config.model import Config
from cellfeed.instance.config_file import load_config
from cellfeed.store.datastore import Datastore
from tests.support.local_mysql import WITHOUT_TLS, MySql, new_mysql
from tests.support.tcp_proxy import TcpProxy

DATASTORE, SHARDS = "trips", 4
USER = "cellfeed"

AS_SERVICES_HAVE_IT = (*WITHOUT_TLS, "--gtid-mode=OFF_PERMISSIVE", "--enforce-gtid-consistency=ON")


@dataclass
class ManagedEndpoint:
    """``server`` is the one behind ``proxy`` now."""

    directory: Path
    server: MySql
    proxy: TcpProxy

    @property
    def url(self) -> str:
        return f"mysql://{USER}@127.0.0.1:{self.proxy.port}"

    def config(self, *, managed: bool = True) -> Path:
        """The configuration file of an instance on the endpoint."""
        cluster = {
            "name": "c1",
            "managed": managed,
            "nodes": [{"name": "endpoint", "url": self.url}],
        }
        path = self.directory / "cellfeed.yaml"
        path.write_text(
            json.dumps({"datastore": {"name": DATASTORE, "shards": SHARDS, "clusters": [cluster]}})
        )
        return path

    def open(self) -> Datastore:
        return open_datastore(self.checked(), self.directory)

    def checked(self) -> Config:
        return load_config(self.config())

    def copy_of_server(self) -> MySql:
        """A second server that has all that the first one has, both running; nobody writes
        meanwhile."""
        self.server.stop()
        other = new_mysql(self.directory / "other", self.server.options, user=USER)
        shutil.rmtree(other.directory / "data")
        subprocess.run(
            ["cp", "-a", self.server.directory / "data", other.directory / "data"], check=True
        )
        (other.directory / "data/auto.cnf").unlink()
        other.server_id = 2
        self.server.start()
        other.start()
        return other


@contextmanager
def managed_endpoint(
    directory: Path, options: tuple[str, ...] = AS_SERVICES_HAVE_IT
) -> Iterator[ManagedEndpoint]:
    """An endpoint with one server, which has no datastore yet."""
    server = new_mysql(directory / "first", options, user=USER)
    try:
        server.start()
        with TcpProxy(server.port) as proxy:
            yield ManagedEndpoint(directory, server, proxy)
    finally:
        server.resume()
        server.kill()
