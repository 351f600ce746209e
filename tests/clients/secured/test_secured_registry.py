"""Confluent's registry client against a registry over TLS with credentials, with its usual
settings."""

from __future__ import annotations

import base64
import http.client
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from cellfeed.store.datastore import Datastore
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.tokens import create_token
from cellfeed.store.security.users import allow, put_user
from tests.support.certificates import make_certificates
from tests.support.running_gateway import GatewayProcess

pytestmark = pytest.mark.integration
PASSWORD = "correct horse, battery"


class Registry(NamedTuple):
    port: int
    ca: str
    token: str

    def client(self, **settings: str) -> SchemaRegistryClient:
        return SchemaRegistryClient(
            {
                "url": f"https://127.0.0.1:{self.port}",
                "ssl.ca.location": self.ca,
                "max.retries": 0,
                **settings,
            }
        )

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=self.ca)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=20, context=context
        )
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    directory = tmp_path_factory.mktemp("secured-registry")
    files = make_certificates(directory / "tls")
    tls = {"certificate": files.certificate, "key": files.key}
    with Datastore.open_embedded(directory / "store") as datastore:
        datastore.put_cell("00000000-0000-4000-8000-000000000001", "BASE", 1, {}).or_raise()
        put_user(datastore.state, "alice", PASSWORD, is_new=True)
        put_user(datastore.state, "mallory", PASSWORD, is_new=True)
        allow(datastore.state, Acl("alice", "topic", "trips.BASE", "read"))
        allow(datastore.state, Acl("prometheus", "datastore", "trips", "operate"))
        token = create_token(datastore.state, "prometheus", None)
        with GatewayProcess(directory / "store", directory / "log", registry=tls) as gateway:
            yield Registry(gateway.registry_port, files.ca, token)


def test_confluents_client_reads_with_its_usual_settings(registry: Registry) -> None:
    with registry.client(**{"basic.auth.user.info": f"alice:{PASSWORD}"}) as client:
        assert client.get_subjects() == ["trips-value"]
        assert client.get_latest_version("trips-value").schema_id


@pytest.mark.parametrize("user", ["alice:wrong", "nobody:nothing"])
def test_wrong_credentials_are_refused(registry: Registry, user: str) -> None:
    with (
        registry.client(**{"basic.auth.user.info": user}) as client,
        pytest.raises(SchemaRegistryError) as refused,
    ):
        client.get_subjects()
    assert refused.value.http_status_code == 401


def test_a_user_without_rights_is_refused(registry: Registry) -> None:
    with (
        registry.client(**{"basic.auth.user.info": f"mallory:{PASSWORD}"}) as client,
        pytest.raises(SchemaRegistryError, match="no right to describe") as refused,
    ):
        client.get_subjects()
    assert refused.value.http_status_code == 403


def test_metrics_are_for_operators_and_the_path_for_probes_is_open(registry: Registry) -> None:
    assert registry.get("/metrics")[0] == 401
    alice = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
    assert registry.get("/metrics", authorization=f"Basic {alice}")[0] == 403
    assert registry.get("/livez") == (200, b"live")
    status, body = registry.get("/metrics", authorization=f"Bearer {registry.token}")
    assert (status, b"cellfeed_gateway_connections" in body) == (200, True)


def test_a_head_without_end_is_refused_as_at_a_worker(registry: Registry) -> None:
    status, _ = registry.get("/subjects?" + "x" * 10_000)
    assert status == 414


def test_the_registry_imports_no_web_framework(tmp_path: Path) -> None:
    code = (
        "import sys, cellfeed.bridge.gateway.run;"
        "print([name for name in sys.modules if name.startswith('litestar')][:3])"
    )
    result: Any = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert result.stdout.strip() == "[]"
