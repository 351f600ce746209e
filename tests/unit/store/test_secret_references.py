"""Secrets that stand in the environment or in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.bridge.coordination.zookeeper.url import parse_zookeeper_url
from cellfeed.store.engines.mysql.address import parse_mysql_url
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.secret_references import SECRET_BYTES_MAX, resolved, resolved_settings

SECRET = "p@ss/w:rd%41 ü"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OF_THE_TEST", SECRET)
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    return path


def test_a_secret_is_read_from_the_environment_and_from_a_file(file: Path) -> None:
    assert resolved(f"a ${{env:OF_THE_TEST}} b ${{file:{file}}}") == f"a {SECRET} b {SECRET}"
    assert resolved("$HOME ${HOME} plain") == "$HOME ${HOME} plain"
    assert resolved_settings({"a": "${env:OF_THE_TEST}", "b": 5}) == {"a": SECRET, "b": 5}


@pytest.mark.parametrize("kind", ["env", "file"])
def test_a_secret_in_a_url_may_have_any_character(file: Path, kind: str) -> None:
    reference = "${env:OF_THE_TEST}" if kind == "env" else f"${{file:{file}}}"
    address = parse_mysql_url(f"mysql://cellfeed:{reference}@db.example:3307")
    assert (address.password, address.host, address.port) == (SECRET, "db.example", 3307)
    assert SECRET not in repr(address)
    zookeeper = parse_zookeeper_url(f"zookeeper://u:{reference}@z:2181/chroot")
    assert (zookeeper.password, zookeeper.hosts) == (SECRET, "z:2181")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("${env:NOT_SET_AT_ALL}", "the environment variable 'NOT_SET_AT_ALL' is not set"),
        ("${file:/nowhere/at/all}", "the file /nowhere/at/all: No such file"),
        ("${file:secret}", "'secret' is no absolute path"),
    ],
)
def test_a_secret_that_is_not_there_is_named_by_its_place(reference: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        resolved(reference)


def test_a_file_that_is_no_secret_is_refused_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_text("x" * (SECRET_BYTES_MAX + 1))
    with pytest.raises(InvalidRequest, match="no secret"):
        resolved(f"${{file:{path}}}")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="is not text in UTF-8"):
        resolved(f"${{file:{path}}}")
