"""Tests that share servers run on one worker, and the longest begin first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OPTIONS = (
    *("-p", "no:cellfeed", "-p", "no:randomly", "-p", "no:schemathesis", "-p", "no:faker"),
    *("-p", "tests.turns", "--collect-only", "-q"),
)
MARKERS = "[pytest]\nmarkers =\n    integration\n    slow\n    faults\n"


@pytest.fixture
def files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini(MARKERS)
    pytester.makeconftest(
        """
        import pytest
        @pytest.fixture(scope="module")
        def servers(): return []
        @pytest.fixture(scope="module", autouse=True)
        def _of_every_file(): return []
        """
    )
    return pytester


def collected(files: pytest.Pytester, *options: str) -> list[str]:
    lines = files.runpytest_inprocess(*OPTIONS, *options).outlines
    return [line.partition("::")[2] for line in lines if "::" in line]


def test_groups_begin_first_the_long_and_the_large_of_them_then_slow_tests(
    files: pytest.Pytester,
) -> None:
    files.makepyfile(
        """
        import pytest
        def test_pure(): pass
        @pytest.mark.integration
        def test_server(): pass
        @pytest.mark.faults
        def test_kill(): pass
        @pytest.mark.slow
        @pytest.mark.integration
        def test_slow(): pass
        @pytest.mark.xdist_group("small")
        def test_alone(): pass
        @pytest.mark.xdist_group("large")
        def test_first(): pass
        @pytest.mark.xdist_group("large")
        def test_second(): pass
        @pytest.mark.xdist_group("kafka")
        def test_broker(): pass
        @pytest.mark.xdist_group("mariadb-cluster")
        def test_cluster(): pass
        """
    )
    assert collected(files) == [
        *("test_cluster", "test_broker", "test_first", "test_second", "test_alone"),
        *("test_slow", "test_kill", "test_server", "test_pure"),
    ]


def test_one_worker_runs_all_of_a_file_that_starts_its_servers_once(
    files: pytest.Pytester,
) -> None:
    files.makepyfile(
        test_shared="""
        import pytest
        @pytest.mark.integration
        def test_with(servers): pass
        @pytest.mark.integration
        def test_without(): pass
        @pytest.mark.integration
        @pytest.mark.xdist_group("own")
        def test_of_a_group(servers): pass
        def test_pure(servers): pass
        """
    )
    files.makeconftest(
        (files.path / "conftest.py").read_text()
        + """
def pytest_collection_finish(session):
    for item in session.items:
        mark = item.get_closest_marker("xdist_group")
        print("::" + item.name, mark and mark.args[0])
"""
    )
    found = [line for line in collected(files, "-s") if " " in line]
    assert sorted(found) == [
        "test_of_a_group own",
        "test_pure None",
        "test_with test_shared",
        "test_without None",
    ]


@pytest.mark.integration
def test_each_group_runs_on_one_worker(files: pytest.Pytester) -> None:
    files.makepyfile(
        test_shared="""
        import pytest
        @pytest.mark.integration
        @pytest.mark.parametrize("number", range(12))
        def test_of_a_file(servers, number, worker_id, record_property):
            record_property("ran", f"file {worker_id}")
        @pytest.mark.xdist_group("own")
        @pytest.mark.parametrize("name", ["a", "b@c", "[d]", "e"] * 3)
        def test_of_a_mark(name, worker_id, record_property):
            record_property("ran", f"mark {worker_id}")
        @pytest.mark.parametrize("number", range(12))
        def test_of_none(number, worker_id, record_property):
            record_property("ran", f"none {worker_id}")
        """
    )
    found = [option for option in OPTIONS if option != "--collect-only"]
    more = ("-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder", "--junit-xml=ran.xml")
    files.runpytest_subprocess(*found, *more, "-o", "junit_family=xunit1").assert_outcomes(
        passed=36
    )
    ran = re.findall(r'name="ran" value="(\w+) (gw\d)"', (files.path / "ran.xml").read_text())
    workers = {kind: {worker for each, worker in ran if each == kind} for kind, _ in ran}
    assert (len(workers["file"]), len(workers["mark"])) == (1, 1)
    assert len(ran) == 36


FOLDER = {
    "folder/__init__.py": "",
    "folder/conftest.py": """
import pytest
@pytest.fixture(scope="package")
def servers(): return []
""",
    "folder/test_first.py": "def test_first(servers): pass",
    "folder/test_last.py": "def test_last(servers): pass",
    "test_middle.py": "def test_middle(servers): pass",
}


def _in_this_order(files: pytest.Pytester, group: str) -> list[str]:
    """The tests of a folder, between them one of a file; each with its group."""
    for name, text in FOLDER.items():
        path = files.path / name
        path.parent.mkdir(exist_ok=True)
        marks = "import pytest\npytestmark = [pytest.mark.integration"
        marks += f', pytest.mark.xdist_group("{group}")]\n' if group else "]\n"
        path.write_text(marks + text if "test_" in name else text)
    files.makeconftest(
        (files.path / "conftest.py").read_text()
        + """
order = ["test_first", "test_middle", "test_last"]
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: order.index(item.name))
def pytest_collection_finish(session):
    for item in session.items:
        print("::" + item.name, item.get_closest_marker("xdist_group").args[0])
"""
    )
    return [line for line in collected(files, "-s") if " " in line]


def test_a_folder_that_starts_its_servers_once_counts_as_one_file(files: pytest.Pytester) -> None:
    assert _in_this_order(files, "") == [
        *("test_first folder", "test_last folder"),
        "test_middle test_middle",
    ]


def test_the_tests_of_a_folder_stay_together_in_a_group(files: pytest.Pytester) -> None:
    assert _in_this_order(files, "own") == ["test_first own", "test_last own", "test_middle own"]


def test_a_folder_stays_whole_where_its_group_is_divided(files: pytest.Pytester) -> None:
    assert _in_this_order(files, "mariadb-cluster") == [
        *("test_first mariadb-cluster-1", "test_last mariadb-cluster-1"),
        "test_middle mariadb-cluster-2",
    ]


def test_a_long_group_is_divided_by_files(files: pytest.Pytester) -> None:
    body = """
        import pytest
        pytestmark = pytest.mark.xdist_group("mariadb-cluster")
        @pytest.mark.parametrize("number", range(3))
        def test_one(number): pass
        """
    files.makepyfile(**{f"test_{letter}": body for letter in "abcd"})
    files.makeconftest(
        """
        def pytest_collection_finish(session):
            for item in session.items:
                print("::", item.path.stem, item.get_closest_marker("xdist_group").args[0])
        """
    )
    found = {line.strip() for line in collected(files, "-s") if "mariadb" in line}
    assert found == {
        "test_a mariadb-cluster-1",
        "test_b mariadb-cluster-2",
        "test_c mariadb-cluster-3",
        "test_d mariadb-cluster-1",
    }


def test_the_parts_of_a_long_group_have_about_as_many_tests(files: pytest.Pytester) -> None:
    body = """
        import pytest
        pytestmark = pytest.mark.xdist_group("mariadb-cluster")
        @pytest.mark.parametrize("number", range({}))
        def test_one(number): pass
        """
    sizes = {"a": 2, "b": 9, "c": 3, "d": 8, "e": 4}
    files.makepyfile(**{f"test_{name}": body.format(size) for name, size in sizes.items()})
    files.makeconftest(
        """
        def pytest_collection_finish(session):
            for item in session.items:
                print("::", item.get_closest_marker("xdist_group").args[0])
        """
    )
    found = [line.strip() for line in collected(files, "-s") if line.startswith(" mariadb")]
    assert sorted(found.count(f"mariadb-cluster-{part}") for part in (1, 2, 3)) == [8, 9, 9]
