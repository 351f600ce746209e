"""Acknowledged is on disk, on MariaDB: the settings that its durability rests on are read back from
every running server; and revisions survive promotions."""

from __future__ import annotations

import pytest

from cellfeed.servers.configured import SHIPPED_SETTINGS
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.mysql.guard_sql import ROLE_KEY
from tests.support.cluster_steps import open_engine
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import TestCluster

pytestmark = pytest.mark.integration

DURABLE = {
    "innodb_flush_log_at_trx_commit": "1",
    "sync_binlog": "1",
    "innodb_doublewrite": "ON",
    "log_bin": "ON",
    "binlog_format": "ROW",
    "gtid_strict_mode": "ON",
    "log_slave_updates": "ON",
}


def settings_of(server: MariaDB) -> dict[str, str]:
    names = ",".join(f"'{name}'" for name in DURABLE)
    rows = server.sql(
        "SELECT LOWER(VARIABLE_NAME), VARIABLE_VALUE FROM information_schema.GLOBAL_VARIABLES"
        f" WHERE VARIABLE_NAME IN ({names})"
    )
    return {str(name): str(value) for name, value in rows}


def test_the_shipped_settings_sync_every_commit_on_every_server(
    servers: list[MariaDB],
) -> None:
    assert [settings_of(each) for each in servers] == [DURABLE] * len(servers)


def test_no_setting_is_weaker_after_a_cluster_was_made_and_promoted(
    cluster: TestCluster, engine: ClusteredEngine, servers: list[MariaDB]
) -> None:
    assert [settings_of(each) for each in servers] == [DURABLE] * len(servers)
    promote(cluster.admin)
    assert [settings_of(each) for each in servers] == [DURABLE] * len(servers)


def test_the_file_that_is_shipped_names_both_syncs() -> None:
    lines = {
        line.partition("=")[0].strip(): line.partition("=")[2].strip()
        for line in (SHIPPED_SETTINGS / "mariadb.cnf").read_text().splitlines()
    }
    assert (lines["innodb_flush_log_at_trx_commit"], lines["sync_binlog"]) == ("1", "1")


def test_a_promotion_uses_a_revision_of_its_own(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    """A version that was given twice would let a compare-and-set pass that somebody else's write
    has overtaken."""
    before = engine.state.commit({"mark/before": b"1"})
    assert before is not None
    done = promote(cluster.admin)
    opened = open_engine(cluster)
    try:
        entry = opened.state.get(ROLE_KEY)
        assert entry is not None
        after = opened.state.commit({"mark/after": b"1"})
        assert after is not None
        assert done.master != done.old_master
        assert before < entry.version < after
    finally:
        opened.close()
