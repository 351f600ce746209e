"""No secret of a request is in a log, an error, the audit log, or the description of a client."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import ssl
from pathlib import Path

import pytest

from cellfeed import Client
from cellfeed.cli.credentials import choose
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.calls.access import Access
from cellfeed.store.security.audit import AuditLog
from tests.support.secured_worker import secured_worker

pytestmark = pytest.mark.integration
PLANTED = "f00dfeed" * 8
TOKEN = f"cft_0123456789ab_{PLANTED}"
PASSWORD = f"hush-{PLANTED}"


def test_a_planted_secret_is_found_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log = AuditLog(tmp_path / "audit.jsonl", "worker")
    seen: list[str] = [repr(Access({"token": TOKEN}))]
    with secured_worker(tmp_path, audit=log) as worker:
        good = worker.token("alice", ("read", "datastore", "trips"))
        with Client(worker.url, "trips", token=TOKEN, ssl_ca=worker.files.ca) as client:
            with pytest.raises(CellfeedError) as refused:
                client.heads()
            seen += [str(refused.value), repr(client), repr(vars(client))]
        context = ssl.create_default_context(cafile=worker.files.ca)
        basic = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
        for path, authorization in (
            ("/v1/trips/shards", f"Bearer {TOKEN}"),
            ("/v1/trips/shards", f"Basic {basic}"),
            ("/v1/trips/shards", f"Bearer a.{PLANTED}.c"),
            (f"/v1/trips/shards?token={TOKEN}", f"Bearer {good}"),
            (f"/v1/trips/shards?{TOKEN}", f"Bearer {good}"),
            (f"/v1/{TOKEN}/shards", f"Bearer {good}"),
            (f"/{TOKEN}", f"Bearer {good}"),
        ):
            connection = http.client.HTTPSConnection(
                "127.0.0.1", worker.port, timeout=20, context=context
            )
            connection.request("GET", path, headers={"authorization": authorization})
            seen.append(connection.getresponse().read().decode())
            connection.close()
        state = json.dumps(
            [entry.value.decode() for entry in worker.datastore.state.list("security/tokens/")]
        )
        seen.append(state)
        assert good.rpartition("_")[2] not in state
    log.close()
    seen += [caplog.text, (tmp_path / "audit.jsonl").read_text()]
    assert "failed" in caplog.text, "failures are logged"
    for text in seen:
        assert PLANTED not in text, text[:500]
        assert basic not in text


def test_a_command_takes_no_token_as_an_argument() -> None:
    assert choose.__code__.co_varnames[0] == "token_file"
