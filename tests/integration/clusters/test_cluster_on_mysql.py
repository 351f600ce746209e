"""Servers that say they are MySQL: a cluster of several is refused before anything of them is
changed. (The servers are MariaDB that tells another version.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support import local_mariadb
from tests.support.cli_instance import cellfeed
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, bare_servers

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mariadb-cluster")]

VERSION = "8.4.3"


@pytest.fixture(scope="module")
def servers() -> Iterator[list[MariaDB]]:
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    with bare_servers(2, (f"--version={VERSION}",)) as started:
        yield started


def state(server: MariaDB) -> list[object]:
    """The changes by which a server becomes a cluster."""
    return [
        server.sql(statement)
        for statement in (
            "SHOW DATABASES",
            "SHOW SLAVE STATUS",
            "SHOW MASTER STATUS",
            "SELECT @@read_only, @@rpl_semi_sync_master_enabled, @@gtid_slave_pos",
        )
    ]


def test_a_cluster_of_several_mysql_servers_is_refused_with_the_reason_and_nothing_is_changed(
    servers: list[MariaDB], tmp_path: Path
) -> None:
    assert servers[0].sql("SELECT VERSION()") == [(VERSION,)]
    before = [state(server) for server in servers]
    nodes = [
        {"name": f"c1-{name}", "url": server.url}
        for name, server in zip("ab", servers, strict=True)
    ]
    config = tmp_path / "cellfeed.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "datastore": {
                    "name": DATASTORE,
                    "shards": SHARDS,
                    "clusters": [{"name": "c1", "nodes": nodes}],
                }
            }
        )
    )
    done = cellfeed("cluster", "init", "--config", str(config))
    assert done.returncode == 3
    assert f"is MySQL {VERSION}" in done.stderr
    assert "a cluster of several nodes needs MariaDB; nothing was changed" in done.stderr
    assert [state(server) for server in servers] == before
