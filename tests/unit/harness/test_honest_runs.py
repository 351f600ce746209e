"""The suite's own plugins: a run is red when a test skips without leave, or when too many tests
needed a second run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_summary import RERUNS_MAX
from tests.skip_policy import ACCEPTED_SKIPS, AcceptedSkip, accepted_skips

ROOT = Path(__file__).parents[3]
QUICK = (
    "-p",
    "no:cellfeed",
    "-p",
    "no:schemathesis",
    "-p",
    "no:faker",
    "-p",
    "tests.skip_policy",
    "-p",
    "tests.run_summary",
)
PLUGINS = ("-p", "no:randomly", *QUICK)
SKIPPING = (
    'import pytest\ndef test_skips(): pytest.skip("no server on this machine")\ndef test_passes():'
    " pass\n"
)
FAILS_ONCE = """
import pytest, pathlib
@pytest.mark.parametrize("number", range({tests}))
def test_waits(number, request):
    seen = pathlib.Path(f"seen-{{number}}")
    times = int(seen.read_text()) if seen.exists() else 0
    seen.write_text(str(times + 1))
    assert times >= {failures}, "not within 3 s: a server answers"
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return pytester


def test_an_unlisted_skip_fails_with_its_reason(run: pytest.Pytester) -> None:
    run.makepyfile(SKIPPING)
    result = run.runpytest_inprocess(*PLUGINS, "--no-unlisted-skips")
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_skips skipped, and the list of accepted skips does not name it: no server on"
            " this machine*"
        ]
    )


def test_ci_fails_an_unlisted_skip_without_being_asked(
    run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    run.makepyfile(SKIPPING)
    assert run.runpytest_inprocess(*PLUGINS).ret == 1


@pytest.mark.integration
def test_workers_of_xdist_fail_it_too(run: pytest.Pytester) -> None:
    run.makepyfile(SKIPPING)
    result = run.runpytest_subprocess(*PLUGINS, "--no-unlisted-skips", "-n", "1")
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(
    "source",
    [
        (
            'import pytest\npytestmark = pytest.mark.skipif(True, reason="no server")\ndef'
            " test_it(): pass\n"
        ),
        SKIPPING,
    ],
)
def test_elsewhere_a_skip_stays_a_skip(run: pytest.Pytester, source: str) -> None:
    run.makepyfile(source)
    result = run.runpytest_inprocess(*PLUGINS)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*= run summary =*", "*skipped 1*", "skipped 1: no server*"])


def test_a_module_that_skips_as_a_whole_fails(run: pytest.Pytester) -> None:
    run.makepyfile('import pytest\npytest.importorskip("no_such_library")\n')
    result = run.runpytest_inprocess(*PLUGINS, "--no-unlisted-skips")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*does not name it: could not import*"])


def test_a_listed_skip_passes_only_for_its_own_reason(run: pytest.Pytester) -> None:
    run.makepyfile(test_it=SKIPPING)
    entry = (
        "[[skip]]\ntest = 'test_it\\.py::test_skips$'\nreason = '{}'\nwhy = 'a test of the list'\n"
    )
    for reason, status in (("no server", 0), ("no client", 1)):
        run.path.joinpath("list.toml").write_text(entry.format(reason))
        assert (
            run.runpytest_inprocess(
                *PLUGINS, "--no-unlisted-skips", "--accepted-skips", "list.toml"
            ).ret
            == status
        )


def test_an_entry_without_a_why_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text("[[skip]]\ntest = 'a'\nreason = 'b'\nwhy = ' '\n")
    with pytest.raises(pytest.UsageError, match="needs a test, a reason and a why"):
        accepted_skips(tmp_path / "list.toml")


@pytest.mark.parametrize("entry", accepted_skips(ACCEPTED_SKIPS), ids=lambda each: each.test)
def test_every_entry_of_the_list_names_one_file_that_exists(entry: AcceptedSkip) -> None:
    assert (ROOT / re.sub(r"\\", "", entry.test.partition("::")[0])).is_file()


GRID_TEST = (
    "tests/clients/test_client_grid.py::test_the_client_table_in_the_guide_equals_the_measured_one"
)
GRID_SKIP = "the rows of these clients are not checked:"
NO_GO = "'franz-go': 'needs Go 1.25 or newer'"


@pytest.mark.parametrize(
    ("test", "reason", "accepted"),
    [
        (
            "tests/clients/test_client_grid.py::test_a_client_can_do_it_all[franz-go-a write]",
            "franz-go needs Go 1.25 or newer",
            True,
        ),
        (
            "tests/clients/test_client_grid.py::test_a_client_can_do_it_all[kcat-a write]",
            "kcat needs kcat (`make services`",
            False,
        ),
        (
            GRID_TEST,
            f"{GRID_SKIP} {{{NO_GO}, 'kafkajs': 'needs Node.js 20'}}",
            True,
        ),
        (
            GRID_TEST,
            f"{GRID_SKIP} {{{NO_GO}, 'Java: KafkaConsumer': 'needs a Java compiler'}}",
            False,
        ),
        (
            "tests/integration/export/test_export.py::test_x",
            "there is no java on this machine",
            False,
        ),
    ],
)
def test_clients_without_their_toolchain_may_skip_and_servers_may_not(
    test: str, reason: str, accepted: bool
) -> None:
    assert any(each.covers(test, reason) for each in accepted_skips(ACCEPTED_SKIPS)) is accepted


@pytest.mark.integration
def test_a_server_that_is_taken_away_turns_a_run_red(tmp_path: Path) -> None:
    """The real suite, where no program of MariaDB is found."""
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import shutil\nfound = shutil.which\nshutil.which = lambda name, *a, **k: None if"
        " name.startswith('mariadb') else found(name, *a, **k)\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-p",
        "no:randomly",
        "tests/integration/clusters/test_mysql_locks.py",
        "-x",
        "--no-unlisted-skips",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout[-2_000:]
    assert "there is no mariadbd on this machine" in done.stdout
    assert re.search(r"^\d+ (failed|error)", done.stdout.splitlines()[-1])


def test_a_test_that_passes_the_second_time_is_counted_and_named(run: pytest.Pytester) -> None:
    run.makepyfile(FAILS_ONCE.format(tests=1, failures=1))
    result = run.runpytest_inprocess(*PLUGINS, "--reruns", "1")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "ran again: *test_waits*",
            "*not within 3 s*",
            "*= run summary =*",
            "passed 1, *rerun 1",
            "rerun: *test_waits[[]0]",
        ]
    )
    assert re.search(r"1 passed, 1 rerun in", result.stdout.lines[-1])


def test_a_test_that_needs_two_reruns_fails(run: pytest.Pytester) -> None:
    run.makepyfile(FAILS_ONCE.format(tests=1, failures=2))
    assert run.runpytest_inprocess(*PLUGINS, "--reruns", "1").ret == 1


@pytest.mark.parametrize(
    ("tests", "workers"),
    [
        (RERUNS_MAX, 0),
        (RERUNS_MAX + 1, 0),
        pytest.param(RERUNS_MAX + 1, 1, marks=pytest.mark.integration),
    ],
)
def test_more_reruns_than_the_limit_fail_a_run_whose_tests_all_passed(
    run: pytest.Pytester, tests: int, workers: int
) -> None:
    run.makepyfile(FAILS_ONCE.format(tests=tests, failures=1))
    start = run.runpytest_subprocess if workers else run.runpytest_inprocess
    result = start(*PLUGINS, "--reruns", "1", "-n", str(workers))
    result.assert_outcomes(passed=tests)
    assert result.ret == (1 if tests > RERUNS_MAX else 0)
    assert (f"FAILED: {tests} reruns, and a run may have {RERUNS_MAX}" in result.stdout.str()) is (
        tests > RERUNS_MAX
    )


@pytest.mark.integration
def test_seeds_of_the_order_and_of_tests_are_printed(run: pytest.Pytester) -> None:
    run.makepyfile(
        test_it=(
            "import pytest\n"
            "@pytest.mark.parametrize('seed', [7])\ndef test_parameter(seed): pass\n"
            "def test_property(record_property): record_property('seed', 9)\n"
        )
    )
    result = run.runpytest_subprocess(*QUICK, "--randomly-seed=42")
    result.stdout.fnmatch_lines(
        [
            "seeds: order and Hypothesis 42 *",
            "seeds of test_it.py::test_parameter: 7",
            "seeds of test_it.py::test_property: 9",
        ]
    )
