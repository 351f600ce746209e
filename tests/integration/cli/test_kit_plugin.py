"""The pytest plugin: loaded by its entry point, found by suites that use it, unnoticed by the
rest."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = "pytester"
ROOT = Path(__file__).parents[3]

_SERVICE = """
        from uuid import uuid4

        import pytest
        from cellfeed import trigger

        @trigger(column="BASE")
        def greet(row_key, *, store):
            store.put_cell(row_key, "GREETING", 1, {"text": "hello"})
"""
"""Indented as the tests below, which go behind it."""


@pytest.fixture
def service(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody else, in which only this plugin is loaded, strictly."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\naddopts = -p cellfeed.testing.plugin --strict-markers -W error")
    return pytester


def test_the_fixture_gives_a_kit_that_runs_a_trigger(service: pytest.Pytester) -> None:
    service.makepyfile(
        _SERVICE
        + """
        def test_greeting(cellfeed_kit):
            row_key = uuid4()
            cellfeed_kit.store.put_cell(row_key, "BASE", 1, {})
            cellfeed_kit.run_until_idle(greet)
            assert cellfeed_kit.store.get_cell(row_key, "GREETING", 1).body == {"text": "hello"}

        @pytest.mark.cellfeed_kit(datastore="orders", shards=2, coordination="zookeeper")
        def test_marker(cellfeed_kit):
            assert (cellfeed_kit.store.name, cellfeed_kit.store.shards) == ("orders", 2)
            cellfeed_kit.run_until_idle(greet)
            with cellfeed_kit.zookeeper_away():
                cellfeed_kit.run_until_idle(greet)
        """
    )
    service.runpytest_subprocess().assert_outcomes(passed=2)


def test_a_fault_that_never_happened_fails_the_test_that_injected_it(
    service: pytest.Pytester,
) -> None:
    service.makepyfile(
        _SERVICE
        + """
        def test_nothing(cellfeed_kit):
            cellfeed_kit.poison(uuid4())
            cellfeed_kit.run_until_idle(greet)
        """
    )
    result = service.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*FaultNeverHappened: poison(*): no trigger was called for such a cell*"]
    )


def test_a_failing_test_leaves_no_thread_and_no_file_behind(service: pytest.Pytester) -> None:
    service.makepyfile(
        _SERVICE
        + """
        import threading

        def test_deadline(cellfeed_kit):
            row_key = uuid4()
            cellfeed_kit.store.put_cell(row_key, "BASE", 1, {})
            cellfeed_kit.failover(away_s=60)
            cellfeed_kit.stall(row_key)
            with pytest.raises(Exception):
                cellfeed_kit.store.put_cell(uuid4(), "BASE", 1, {})
            cellfeed_kit.run_until_idle(greet, deadline_s=0.2)

        def test_after():
            import gc
            gc.collect()
            names = [thread.name for thread in threading.enumerate()]
            ours = ("worker", "trigger", "zookeeper")
            assert [name for name in names if name.startswith(ours)] == []
        """
    )
    service.runpytest_subprocess("-p", "no:randomly").assert_outcomes(failed=1, passed=1, errors=1)


def test_a_project_that_does_not_use_it_loads_nothing_of_the_product(
    service: pytest.Pytester,
) -> None:
    service.makepyfile("""
        import sys

        def test_nothing():
            ours = {"cellfeed", "consumers", "bridge", "store", "schemas"}
            ours |= {"numpy", "kazoo", "msgspec"}
            loaded = {name for name in sys.modules if name.split(".")[0] in ours}
            assert loaded == {"cellfeed", "cellfeed.testing", "cellfeed.testing.plugin"}
        """)
    service.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_kit_is_a_pytest_entry_point_and_pytest_is_no_dependency_of_the_product() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"cellfeed": "cellfeed.testing.plugin"}
    assert any(each.startswith("pytest>=") for each in project["optional-dependencies"]["testing"])
    assert not any(each.startswith("pytest") for each in project["dependencies"])


def test_the_kit_itself_needs_no_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None; import cellfeed.testing.kit, cellfeed.testing;"
        " cellfeed.testing.Kit"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
