"""A fence ends commits that wait for a minion: they are there then, and no minion has them. Nobody
learns so before the server is read-only."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from typing import Any

import pytest

from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.mysql import read_only, statements
from cellfeed.store.errors import CellfeedError
from tests.support.cluster_steps import cells, eventually, open_engine, put_until_stored
from tests.support.mariadb_cluster import TestCluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


def test_a_commit_that_a_fence_has_ended_is_not_acknowledged(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old master was not reached by the promotion, and returns: a caller that put the cell
    again was answered `exists`, and the cell got another id."""
    told: list[PutResult] = []
    wanted = cells(range(1))

    def put() -> None:
        with suppress(CellfeedError):
            told.extend(engine.put(wanted))

    real = statements.query

    def query(connection: Any, sql: str) -> Any:
        if sql == "SET GLOBAL read_only = 1" and len(threads) == 1:
            again = threading.Thread(target=put)
            again.start()
            again.join(2.0)
            threads.append(again)
        return real(connection, sql)

    with closing(open_engine(cluster)) as engine:
        put_until_stored(engine, cells(range(1, 5)))
        for name in "bc":
            cluster.servers[name].sql("STOP SLAVE IO_THREAD")
        threads = [threading.Thread(target=put)]
        threads[0].start()
        eventually(
            lambda: any(
                "semi-sync" in str(row).lower()
                for row in cluster.servers["a"].sql("SHOW PROCESSLIST")
            ),
            "the commit waits for a minion",
        )
        monkeypatch.setattr(read_only, "query", query)
        read_only.make_read_only(cluster.admin.server("a"))
        for each in threads:
            each.join()
        assert told == [], "no minion has it"
