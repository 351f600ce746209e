"""The choice between containers and local servers, at a stand-in for a Docker engine."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest

from tests.support import server_source
from tests.support.server_source import IMAGES, ServerSource, choose, why_no_engine

ID = "5" * 64


class Engine(ThreadingMixIn, UnixStreamServer):
    """Answers the calls of a container's life, and keeps the requests to create one."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.created: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.is_well = True
        super().__init__(str(path), Handler)

    @property
    def address(self) -> str:
        return f"unix://{self.path}"

    def get_request(self) -> tuple[socket.socket, Any]:
        request, _ = super().get_request()
        return request, ("engine", 0)


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = re.sub(r"^/v[\d.]+", "", self.path.partition("?")[0])
        self.server.calls.append(f"{self.command} {path}")
        status, answer = (
            (200, self._answer(path, body)) if self.server.is_well else (500, {"message": "ill"})
        )
        content = b"OK" if path == "/_ping" and status == 200 else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _any  # noqa: N815 (the library's names)

    def _answer(self, path: str, body: bytes) -> Any:
        if path == "/version":
            return {"ApiVersion": "1.41", "MinAPIVersion": "1.24", "Version": "20"}
        if path == "/containers/create":
            self.server.created.append(json.loads(body))
            return {"Id": ID, "Warnings": []}
        return {"Id": ID, "State": {"Status": "running"}, "Config": {}, "NetworkSettings": {}}

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "docker.sock")
    thread = threading.Thread(target=engine.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield engine
    engine.shutdown()
    engine.server_close()
    thread.join(10)


def test_servers_are_containers_where_an_engine_answers(engine: Engine) -> None:
    found = choose({"DOCKER_HOST": engine.address})
    assert found.kind == "containers"
    assert str(found) == f"servers: containers (a Docker engine answers at {engine.address})"
    assert engine.calls == ["GET /_ping"]


def test_servers_are_local_where_no_engine_is_or_it_does_not_answer(
    engine: Engine, tmp_path: Path
) -> None:
    gone = f"unix://{tmp_path}/gone.sock"
    assert choose({"DOCKER_HOST": gone}) == ServerSource(
        "local", f"there is no Docker engine at {gone}"
    )
    engine.is_well = False
    ill = choose({"DOCKER_HOST": engine.address})
    assert ill.kind == "local"
    assert "does not answer" in ill.because
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "closed.sock"))
    assert "does not answer" in str(why_no_engine(f"unix://{tmp_path}/closed.sock"))


def test_an_engine_of_another_host_is_not_used(engine: Engine) -> None:
    found = choose({"DOCKER_HOST": "tcp://10.0.0.1:2375"})
    assert found.kind == "local"
    assert "another host" in found.because


def test_the_variable_decides_before_the_engine(engine: Engine, tmp_path: Path) -> None:
    environment = {"DOCKER_HOST": engine.address, server_source.VARIABLE: "local"}
    assert choose(environment).kind == "local"
    assert engine.calls == []
    environment[server_source.VARIABLE] = "containers"
    assert choose(environment).kind == "containers"
    environment["DOCKER_HOST"] = f"unix://{tmp_path}/gone.sock"
    with pytest.raises(RuntimeError, match="containers, but there is no Docker engine"):
        choose(environment)
    with pytest.raises(RuntimeError, match="may be auto, local or containers"):
        choose({server_source.VARIABLE: "podman"})


@pytest.mark.parametrize(
    ("name", "inside", "setting"),
    [
        ("mariadb", "3306/tcp", "MARIADB_ALLOW_EMPTY_ROOT_PASSWORD=1"),
        ("zookeeper", "2181/tcp", "ZOO_CFG_EXTRA=tickTime=200"),
        ("kafka", "9092/tcp", "KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:"),
    ],
)
def test_a_container_has_the_image_of_the_compose_file_and_a_port_of_loopback(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str, inside: str, setting: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    monkeypatch.setattr("testcontainers.core.config.testcontainers_config.ryuk_disabled", True)
    monkeypatch.setattr(server_source, "_await", lambda *_: None)
    source = ServerSource("containers", "of a test")
    with getattr(source, name)() as server:
        [created] = engine.created
        port = {"mariadb": "port", "zookeeper": "port"}.get(name)
        bound = str(getattr(server, port) if port else server.ports[0])
    assert created["Image"] == IMAGES[name]
    assert created["HostConfig"]["PortBindings"][inside] == [
        {"HostIp": "127.0.0.1", "HostPort": bound}
    ]
    assert any(each.startswith(setting) for each in created["Env"])
    assert f"POST /containers/{ID}/start" in engine.calls
    assert f"DELETE /containers/{ID}" in engine.calls
