"""A cluster whose servers take connections with TLS alone: ours, and those of minions to their
master, also after a promotion."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import come_back
from cellfeed.store.engines.mysql.address import MySqlTls, parse_mysql_url
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.replication import follow, minion_status
from tests.support import local_mariadb
from tests.support.certificates import Certificates, make_certificates
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, bare_servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mariadb-cluster")]

PASSWORD = "of-the-cluster"
ACCOUNT = f"CREATE USER app@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE SSL"


@pytest.fixture
def certificates(tmp_path: Path) -> Iterator[Certificates]:
    """In a folder that the servers' own user can read."""
    folder = Path("/tmp") / f"cellfeed-certificates-{tmp_path.parent.name}-{tmp_path.name}"
    made = make_certificates(folder)
    for file in (folder, *folder.iterdir()):
        file.chmod(0o755)
    yield made
    shutil.rmtree(folder)


@pytest.fixture
def servers(certificates: Certificates) -> Iterator[list[MariaDB]]:
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    options = (
        f"--ssl-ca={certificates.ca}",
        f"--ssl-cert={certificates.certificate}",
        f"--ssl-key={certificates.key}",
    )
    with bare_servers(3, options) as started:
        for each in started:
            each.sql("SET SESSION sql_log_bin = 0", ACCOUNT, "GRANT ALL ON *.* TO app@'%'")
        yield started


def cluster_of(servers: list[MariaDB], tls: MySqlTls) -> ClusterServers:
    nodes = {
        name: MySqlServer(
            parse_mysql_url(f"mysql://app:{PASSWORD}@127.0.0.1:{server.port}", tls=tls)
        )
        for name, server in zip("abc", servers, strict=True)
    }
    return ClusterServers("c1", DATASTORE, SHARDS, nodes)


def test_minions_follow_their_master_with_tls_also_after_a_promotion(
    servers: list[MariaDB], certificates: Certificates
) -> None:
    cluster = cluster_of(servers, MySqlTls(certificates.ca))
    try:
        init_cluster(cluster, even_map(DATASTORE, SHARDS, ["c1"]))
        done = promote(cluster, give_up=[])
        come_back(cluster, "a")
        for name, server in cluster.servers.items():
            if name == done.master:
                continue

            def follows(server: MySqlServer = server) -> bool:
                status = minion_status(server)
                return status is not None and status.io_running == "Yes"

            wait_until(follows, f"{name} follows over TLS")
        names = [name for name in cluster.servers if name != done.master]
        for name in names:
            [row] = servers["abc".index(name)].sql("SHOW SLAVE STATUS")
            assert certificates.ca in row
    finally:
        cluster.close()


def test_a_minion_does_not_follow_a_master_whose_certificate_another_authority_signed(
    servers: list[MariaDB], certificates: Certificates, tmp_path: Path
) -> None:
    folder = Path(certificates.ca).parent / "other"
    other = make_certificates(folder)
    for file in (folder, *folder.iterdir()):
        file.chmod(0o755)
    cluster = cluster_of(servers, MySqlTls(certificates.ca, replication_ca=other.ca))
    try:
        follow(cluster.server("b"), cluster.server("a"))

        def refused() -> bool:
            status = minion_status(cluster.server("b"))
            return status is not None and "SSL connection error" in status.error

        wait_until(refused, "the minion refuses the master's certificate")
    finally:
        cluster.close()
