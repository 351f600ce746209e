"""Certificates that are replaced while a gateway serves: new handshakes have the new ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cellfeed.bridge.gateway.security.listeners import Listener
from cellfeed.store.security.certificates import Certificates
from tests.support import certificates


@pytest.fixture
def old(tmp_path: Path) -> certificates.Certificates:
    return certificates.make_certificates(tmp_path / "in-use")


@pytest.fixture
def new(tmp_path: Path) -> certificates.Certificates:
    return certificates.make_certificates(tmp_path / "new")


def listener_of(files: certificates.Certificates, port: int = 0) -> Listener:
    return Listener(
        security="tls",
        port=port,
        certificate=files.certificate,
        key=files.key,
        client_ca=files.ca,
    )


def test_files_that_did_not_change_are_not_read_again(old: certificates.Certificates) -> None:
    listener = Certificates(listener_of(old).tls_files, "the listener")
    context = listener.context
    listener.refresh()
    assert listener.context is context


@pytest.mark.parametrize("part", ["certificate", "key", "ca"])
def test_a_file_that_does_not_fit_yet_changes_nothing_until_the_others_come(
    old: certificates.Certificates,
    new: certificates.Certificates,
    part: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = Certificates(listener_of(old).tls_files, "the listener")
    context = listener.context
    Path(getattr(old, part)).unlink()
    for _ in range(3):
        listener.refresh()
    assert listener.context is context
    assert caplog.text.count("those in use stay") == 1, "each change is reported once"
    for name in ("certificate", "key", "ca"):
        shutil.copy(getattr(new, name), getattr(old, name))
    listener.refresh()
    assert listener.context is not context


def test_a_listener_without_tls_has_no_certificates() -> None:
    listener = Certificates(Listener().tls_files, "the listener")
    listener.refresh()
    assert listener.context is None
