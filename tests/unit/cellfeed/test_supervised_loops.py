"""No thread and no task of the product runs a loop by itself: :mod:`cellfeed.store.background` runs
it, or a reason stands here."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache

import pytest

from tests.support.source_files import modules, nodes, place_of

PACKAGES = ("store", "bridge", "consumers", "cellfeed")
BEGINS = ("Thread", "Timer", "start_new_thread", "create_task", "ensure_future")
"""A module without any of these words begins neither."""

THREADS = {
    "store/background.py": "the supervised loop itself",
    "store/engines/sqlite/checkpoints.py": (
        "moves what one log holds and ends; its error is logged, and a later commit starts another"
    ),
    "store/backups/places/s3_lock.py": (
        "renews one lock; where it ends, `refuse_if_lost` stops its holder when the time is up"
    ),
    "store/indexes/settled_logs.py": (
        "reads offsets once and ends; without them a query looks at every row, and begins another"
    ),
    "store/http/calls/blocking.py": "a timer: says once what a call waits for, ends with it",
    "store/clusters/operating/background_copy.py": (
        "a copy to one node: it ends by itself, logs its errors, and the next look begins another"
    ),
    "bridge/export/unit_run.py": "its owner looks at `failed` and ends the process with the error",
    "bridge/coordination/zookeeper/connection.py": "closes one connection and ends",
    "bridge/triggers/operate/metrics.py": (
        "one look for one scrape; without its figures the gauges say that nothing is known"
    ),
    "cellfeed/cli/index.py": (
        "the command that started it looks whether it lives, and fails when it does not"
    ),
    "cellfeed/console/query/sandbox.py": "a timer: interrupts one query, ends with it",
    "cellfeed/console/query/sql.py": "a timer: kills one query's process, ends with it",
    "cellfeed/status/looks.py": "one look for all pages; they show its error, and its age",
    "cellfeed/testing/worker.py": "a test asks for the error that ended it",
}
"""Where a thread is made without supervision, and why its end is seen still."""

TASKS = {
    "bridge/gateway/groups/active_groups.py": "forgets one group and ends",
    "bridge/gateway/log/blocks.py": "encodes one block; who waits for it has its error",
    "store/security/accepting.py": (
        "serves one connection and ends; the loops that accept them are supervised"
    ),
    "bridge/gateway/connection.py": "the halves of one connection, which ends with either",
    "store/following/heads.py": (
        "follows one wake-up and ends; its error is logged, and the poll reads the heads"
    ),
    "store/http/server/in_loop.py": (
        "the schema registry's server, which ends when it is asked to; start and stop wait for it"
    ),
    "store/http/calls/asynchronous_puts.py": (
        "sends one request and ends; each put of it is settled, also when it is cancelled"
    ),
    "store/http/server/follow.py": "wait for the end of one follower, and end with it",
    "store/http/server/wakeups.py": "waits for the ends of one answer",
    "store/http/server/put_stream.py": "the halves of one request, in a task group",
    "store/http/server/wait.py": "wait for the end of one waiter, and end with it",
}
"""The same for tasks of an event loop."""


@cache
def sources() -> list[tuple[str, ast.Module]]:
    """Every module of the product that may begin a thread or a task, by its place, parsed once."""
    return [
        (place_of(path), ast.parse(text))
        for package in PACKAGES
        for path in modules(package)
        if any(word in (text := path.read_text()) for word in BEGINS)
    ]


def name_of(node: ast.expr) -> str:
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )


def makes_thread(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(name_of(base) in ("Thread", "Timer") for base in node.bases)
    return isinstance(node, ast.Call) and name_of(node.func) in (
        "Thread",
        "Timer",
        "start_new_thread",
    )


def makes_task(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or name_of(node.func) not in ("create_task", "ensure_future"):
        return False
    return not (
        node.args
        and isinstance(node.args[0], ast.Call)
        and name_of(node.args[0].func) == "keep_running"
    )


@pytest.mark.parametrize(
    ("makes", "accepted"), [(makes_thread, THREADS), (makes_task, TASKS)], ids=["threads", "tasks"]
)
def test_every_loop_is_supervised_or_has_a_reason(
    makes: Callable[[ast.AST], bool], accepted: dict[str, str]
) -> None:
    found = {path for path, module in sources() if any(makes(node) for node in nodes(module))}
    assert sorted(found - set(accepted)) == [], (
        "run the loop by store.background, or give the reason why nobody needs to"
    )
    assert sorted(set(accepted) - found) == [], "a reason for what is not there any more"


@pytest.mark.parametrize(
    "source",
    [
        "import threading\nthreading.Thread(target=f)",
        "from threading import Thread\nThread(target=f)",
        "import threading\nclass Loop(threading.Thread): ...",
        "import threading\nthreading.Timer(1, f)",
        "import asyncio\nasyncio.create_task(f())",
        "import asyncio\nasyncio.get_running_loop().create_task(f())",
        "import asyncio\nasyncio.ensure_future(f())",
    ],
)
def test_every_way_to_begin_one_is_found(source: str) -> None:
    assert any(makes_thread(node) or makes_task(node) for node in ast.walk(ast.parse(source)))


def test_supervised_loops_are_not_reported_as_bare_threads_or_tasks() -> None:
    source = "SupervisedThread('x', f).start()\nasyncio.create_task(keep_running('x', f))"
    assert not any(makes_thread(node) or makes_task(node) for node in ast.walk(ast.parse(source)))
