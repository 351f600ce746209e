"""SIGHUP has a gateway take certificates that were replaced, and ends nothing."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import struct
from pathlib import Path

import pytest

from cellfeed.store.datastore import Datastore
from tests.support.certificates import make_certificates
from tests.support.free_ports import free_port
from tests.support.running_gateway import GatewayProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


def test_sighup_has_a_gateway_take_them_and_keeps_its_connections(
    tmp_path: Path,
) -> None:
    old, new = make_certificates(tmp_path / "in-use"), make_certificates(tmp_path / "new")
    port = free_port()
    listeners = [
        {
            "name": "default",
            "port": port,
            "security": "tls",
            "certificate": old.certificate,
            "key": old.key,
        }
    ]

    def connected(ca: str) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=ca)
        opened = socket.create_connection(("127.0.0.1", port), timeout=20)
        try:
            return context.wrap_socket(opened, server_hostname="127.0.0.1")
        except ssl.SSLError:
            opened.close()
            raise

    def trusts(ca: str) -> bool:
        try:
            connected(ca).close()
        except ssl.SSLError:
            return False
        return True

    ca = str(shutil.copy(old.ca, tmp_path / "old-ca.pem"))
    Datastore.open_embedded(tmp_path / "store").close()
    with (
        GatewayProcess(tmp_path / "store", tmp_path / "log", listeners=listeners) as gateway,
        connected(ca) as before,
    ):
        assert not trusts(new.ca)
        for name in ("certificate", "key"):
            shutil.copy(getattr(new, name), getattr(old, name))
        process = gateway.process
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: trusts(new.ca), "the new certificate is served")
        assert not trusts(ca)
        assert process.is_running()
        before.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        assert len(before.recv(4)) == 4, "a connection that was open stays"
