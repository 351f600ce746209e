"""`managed: true`, as an operator meets it, on an endpoint with an account of few rights."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store.errors import StorageUnavailable, WrongServerSettings
from tests.support.cli_instance import cellfeed
from tests.support.local_mysql import MINIMAL_GRANTS
from tests.support.managed_endpoint import DATASTORE, SHARDS, USER, ManagedEndpoint
from tests.support.mariadb_cluster import cells_of_shard

GUIDE = Path(__file__).parents[4] / "docs/operate/managed-mysql.md"

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mysql-managed")]


def test_the_grants_of_the_guide_are_those_that_the_tests_run_with() -> None:
    grants = MINIMAL_GRANTS.format(datastore=DATASTORE, user=USER)
    assert f"GRANT {grants};" in GUIDE.read_text()


def test_an_account_with_the_grants_of_the_guide_makes_writes_indexes_and_trims_a_datastore(
    bare_endpoint: ManagedEndpoint,
) -> None:
    config = str(bare_endpoint.config())
    done = cellfeed("cluster", "init", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    again = cellfeed("cluster", "init", "--config", config, "--json")
    assert json.loads(again.stdout)["was_there"] is True
    migrated = cellfeed("cluster", "migrate", "--config", config)
    assert migrated.returncode == 0, migrated.stderr
    with bare_endpoint.open() as datastore:
        cells = cells_of_shard(1, 0, 20)
        assert all(result.acknowledged for result in datastore.put_new_cells(cells))
        datastore.engine.trim(1, 5)
        datastore.erase_row(UUID(bytes=cells[7].row_key))
    checked = cellfeed("check", "--config", config)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("operation", "command"),
    [
        ("promote", ("cluster", "promote", "c1")),
        ("rejoin", ("cluster", "rejoin", "c1", "endpoint")),
        ("rejoin", ("cluster", "rejoin", "c1", "endpoint", "--copy")),
        ("scrub", ("scrub",)),
    ],
)
def test_operations_of_replication_are_refused_by_name(
    endpoint: ManagedEndpoint, operation: str, command: tuple[str, ...]
) -> None:
    before = endpoint.server.sql(f"SELECT * FROM {DATASTORE}_meta.state_entry")
    done = cellfeed(*command, "--config", str(endpoint.config()))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "cluster c1 is managed (`managed: true`)" in done.stderr
    assert f"{operation} is for servers that replicate" in " ".join(done.stderr.split())
    assert endpoint.server.sql(f"SELECT * FROM {DATASTORE}_meta.state_entry") == before


def test_without_the_word_managed_the_same_endpoint_is_refused_for_its_replication(
    bare_endpoint: ManagedEndpoint,
) -> None:
    config = bare_endpoint.config(managed=False)
    done = cellfeed("cluster", "init", "--config", str(config))
    assert done.returncode == 3
    assert "gtid_mode is OFF_PERMISSIVE, wanted ON" in done.stderr


@pytest.mark.parametrize(
    ("variable", "wrong", "right"),
    [("innodb_flush_log_at_trx_commit", 2, 1), ("max_allowed_packet", 1 << 20, 64 << 20)],
)
def test_settings_that_keep_cells_safe_are_checked_on_a_managed_endpoint_as_well(
    endpoint: ManagedEndpoint, variable: str, wrong: int, right: int
) -> None:
    endpoint.server.sql(f"SET GLOBAL {variable} = {wrong}")
    with (
        pytest.raises((StorageUnavailable, WrongServerSettings), match=f"{variable} is {wrong}"),
        endpoint.open() as datastore,
    ):
        datastore.engine.heads()
    endpoint.server.sql(f"SET GLOBAL {variable} = {right}")
    with endpoint.open() as datastore:
        assert len(datastore.engine.heads()) == SHARDS


def test_a_setting_by_which_reads_may_be_stale_is_refused(endpoint: ManagedEndpoint) -> None:
    server = endpoint.server
    server.sql("INSTALL PLUGIN group_replication SONAME 'group_replication.so'")
    server.sql("SET GLOBAL group_replication_consistency = 'EVENTUAL'")
    with (
        pytest.raises(
            (StorageUnavailable, WrongServerSettings),
            match="group_replication_consistency is 'EVENTUAL'",
        ),
        endpoint.open() as datastore,
    ):
        datastore.engine.heads()
    server.sql("SET GLOBAL group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER'")
    with endpoint.open() as datastore:
        assert len(datastore.engine.heads()) == SHARDS
