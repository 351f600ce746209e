"""Where one of two actors wins: each place has a failpoint before and after it, so that races can
be tried there. A new place fails until it has them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("store", "bridge", "consumers", "cellfeed")

MARKED: Final = {
    "store/engines/sqlite/state.py:SqliteState.commit": "cas.state",
    "store/engines/mysql/state.py:MySqlState.commit": "cas.state",
    "store/engines/mysql/guard.py:Guard.until_it_passes": "cas.guard",
    "store/clusters/moves/locked_shard.py:LockedShard._commit": "cas.shard",
    "bridge/coordination/zookeeper/connection.py:Connection.commit": "cas.zookeeper",
    "cellfeed/testing/zookeeper_tree.py:TreeClient.commit": "cas.zookeeper",
    "store/engines/mysql/guard.py:Guard.alter": "cas.alter",
    "store/engines/mysql/locks.py:take_lock": "claim.lock",
    "store/engines/mysql/read_only.py:make_read_only": "fence.server",
    "store/engines/mysql/read_only.py:open_for_writes": "role.open",
    "store/engines/mysql/replication.py:follow": "role.follow",
    "store/engines/mysql/replication.py:stop_following": "role.leave",
    "store/clusters/operating/new_master.py:raise_epoch": "role.raise",
    "store/clusters/model/promises.py:promise": "role.promise",
}
"""Calls that compare and set, claim, fence, or change roles by themselves, and the failpoints
around them."""

THROUGH: Final = {
    "store/clusters/serving/state.py:ClusterState.commit": "commit",
    "store/engines/mysql/guard.py:Guard.commit": "until_it_passes",
    "bridge/coordination/zookeeper/history.py:ZooKeeperHistory.commit": "commit",
    "cellfeed/testing/checked_state.py:CheckedState.commit": "commit",
}
"""Calls that go through one of those, by the call with which they do."""

OTHERS: Final = {
    "store/engines/contract/state_table.py:StateTable.commit": "a protocol",
    "store/engines/contract/state_table.py:NodeStateTable.commit": "a protocol",
    "bridge/coordination/open.py:_NoStorage.commit": "refuses",
    "bridge/coordination/zookeeper/client.py:ZooKeeperClient.commit": "abstract",
    "bridge/export/unit_producer.py:UnitProducer.commit": (
        "a Kafka transaction: failpoints export.before_commit and export.after_commit"
    ),
    "consumers/lake/commits.py:Commits.commit": (
        "a commit of a lake table: failpoints lake.iceberg.* and lake.delta.* around the catalog's"
    ),
    "cellfeed/testing/zookeeper_tree.py:ZooKeeperTree.commit": (
        "the server in memory, called by its connections alone"
    ),
}

RECEIVERS: Final = {
    "state",
    "_state",
    "_base",
    "base",
    "_history",
    "client",
    "self",
    "_guard",
    "_tree",
    "_consumer",
    "producer",
    "_commits",
}
"""Receivers that code asks to commit: state tables, ZooKeeper's clients, the guard of a MySQL
server, Kafka's clients, and the commits of a lake table."""

SQL_OF_ROLES: Final = (
    "GET_LOCK(",
    "SET GLOBAL read_only",
    "CHANGE MASTER TO",
    "RESET SLAVE",
    "state_entry (entry_key, value, version) VALUES",
    "SET leader_epoch = {",
)
"""The statements that a claim, a fence or a change of roles sends to a server."""

SQL_BESIDE: Final = {
    "store/backups/into_mysql.py": (
        "a restore, of storage that nobody can open: failpoints mysql.restore.*"
    ),
    "store/clusters/operating/bare_servers.py:_follows_already": "the text of an error",
    "store/engines/mysql/migrations.py:_only_runner": (
        "one process migrates: failpoints mysql.migrate.*"
    ),
    "store/engines/mysql/semi_sync.py:_settings_lock": (
        "two connections that set the same: failpoints cas.guard.* of the write that needs it"
    ),
}
"""Other places with these statements, by file or by function, and why they have no failpoints of
their own."""


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """By file and qualified name; those inside a function belong to it."""
    name = path.relative_to(ROOT).as_posix()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name}:{node.name}", node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{name}:{node.name}.{inner.name}", inner


@cache
def code() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [each for path in paths for each in functions(path)]


def marks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The names that its decorators ``@marked(…)`` give."""
    calls = [
        each
        for each in function.decorator_list
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "marked"
    ]
    return [str(ast.literal_eval(each.args[0])) for each in calls]


def calls(function: ast.AST, name: str) -> list[ast.Call]:
    return [
        each
        for each in ast.walk(function)
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr == name
    ]


def test_every_way_to_compare_and_set_has_failpoints_itself_or_below() -> None:
    wrong = []
    found = {}
    for name, function in code():
        found[name] = marks(function)
        if name in THROUGH and not calls(function, THROUGH[name]):
            wrong.append(f"{name} does not call {THROUGH[name]}")
        if name.endswith(".commit") and name not in MARKED.keys() | THROUGH.keys() | OTHERS.keys():
            wrong.append(
                f"{name} commits: mark it (store.failpoints.marked), or list what it goes through"
            )
    assert not wrong, "\n".join(wrong)
    assert {name: told for name, told in found.items() if told} == {
        name: [mark] for name, mark in MARKED.items()
    }
    assert (THROUGH.keys() | OTHERS.keys()) <= found.keys()


def test_every_compare_and_set_asks_a_listed_receiver() -> None:
    strangers = []
    sites = 0
    for name, function in code():
        for call in calls(function, "commit"):
            assert isinstance(call.func, ast.Attribute)
            receiver = call.func.value
            asked = (
                receiver.attr
                if isinstance(receiver, ast.Attribute)
                else ast.unparse(receiver.func if isinstance(receiver, ast.Call) else receiver)
            )
            sites += any(each.arg == "expect" for each in call.keywords) or len(call.args) > 1
            if asked.rpartition(".")[2] not in RECEIVERS:
                strangers.append(f"{name} line {call.lineno}: {ast.unparse(call.func)}")
    assert strangers == []
    assert sites > 40, (
        f"only {sites} compare-and-sets were found: this test does not see them any more"
    )


def test_every_fence_and_change_of_roles_has_failpoints() -> None:
    bare = []
    for name, function in code():
        # The texts of f-strings as they are written: holes stay holes.
        text = ast.unparse(function)
        if (
            any(sql in text for sql in SQL_OF_ROLES)
            and not marks(function)
            and not {name, name.partition(":")[0]} & SQL_BESIDE.keys()
        ):
            bare.append(name)
    assert bare == []
