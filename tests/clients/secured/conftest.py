"""A secured gateway, and clients of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.users import allow, put_user
from tests.support.certificates import make_certificates
from tests.support.free_ports import free_ports
from tests.support.running_gateway import GatewayProcess
from tests.support.secured_gateway import CELLS, CLIENTS, PASSWORD, Client, Secured


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    files = make_certificates(directory / "tls")
    ports = dict(zip(("open", "sasl", "mutual", "scram"), free_ports(4), strict=True))
    tls = {"certificate": files.certificate, "key": files.key}
    listeners = [
        {"name": "open", "port": ports["open"]},
        {"name": "sasl", "port": ports["sasl"], "security": "sasl_tls", **tls},
        {
            "name": "mutual",
            "port": ports["mutual"],
            "security": "tls",
            "client_ca": files.ca,
            **tls,
        },
        {
            "name": "scram",
            "port": ports["scram"],
            "security": "sasl_plaintext",
            "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
        },
    ]
    with Datastore.open_embedded(directory / "store") as datastore:
        for number in range(CELLS):
            datastore.put_cell(
                f"00000000-0000-4000-8000-{number:012}", "BASE", 1, {"number": number}
            ).or_raise()
        put_user(datastore.state, "alice", PASSWORD, is_new=True)
        for kind in ("topic", "group"):
            allow(datastore.state, Acl("alice", kind, "tri*", "read"))
        allow(datastore.state, Acl("CN=billing,O=example", "topic", "trips", "read"))
        with GatewayProcess(directory / "store", directory / "log", listeners=listeners):
            yield Secured(datastore, files, ports, directory / "log")


@pytest.fixture(params=CLIENTS, ids=["confluent-kafka", "kafka-python", "aiokafka"])
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    return found
