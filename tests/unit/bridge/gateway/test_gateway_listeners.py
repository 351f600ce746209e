"""Where a gateway may listen: beyond loopback only with TLS and authentication, and the error says
how."""

from __future__ import annotations

from typing import Any

import pytest

from cellfeed.bridge.gateway.security.listeners import Listener, check_listener, subject_principal
from cellfeed.store.errors import InvalidRequest, ProtectData

TLS: dict[str, Any] = {"certificate": "c.pem", "key": "k.pem"}


@pytest.mark.parametrize(
    "listener",
    [
        Listener(),
        Listener(host="0.0.0.0", security="sasl_tls", **TLS),
        Listener(host="::", security="tls", client_ca="a", **TLS),
    ],
)
def test_what_protects_the_cells_is_let_through(listener: Listener) -> None:
    check_listener(listener)


@pytest.mark.parametrize(
    "listener",
    [
        Listener(host="0.0.0.0"),
        Listener(host="10.0.0.1", security="sasl_plaintext"),
        Listener(host="::", security="tls", **TLS),
    ],
)
def test_what_would_show_every_cell_is_refused_with_the_way_out(listener: Listener) -> None:
    with pytest.raises(ProtectData, match="set security: sasl_tls"):
        check_listener(listener)


@pytest.mark.parametrize(
    "listener",
    [
        Listener(security="tls"),
        Listener(client_ca="a"),
        Listener(security="sasl_plaintext", mechanisms=("GSSAPI",)),
    ],
)
def test_what_does_not_fit_together_is_refused(listener: Listener) -> None:
    with pytest.raises(InvalidRequest, match="listener 'default'"):
        check_listener(listener)


def test_a_subject_is_written_as_kafka_writes_it() -> None:
    assert (
        subject_principal(
            {"subject": ((("organizationName", "example"),), (("commonName", "billing"),))}
        )
        == "CN=billing,O=example"
    )
    assert subject_principal(None) is None
