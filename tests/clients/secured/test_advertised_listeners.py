"""The address that a gateway reports of itself names the protocol of the listener that is asked."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.support.secured_gateway import PASSWORD, TIMEOUT_S, Secured

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway security")]


@pytest.mark.parametrize(
    ("listener", "protocol"),
    [
        ("open", "PLAINTEXT"),
        ("sasl", "SASL_SSL"),
        ("mutual", "SSL"),
        ("scram", "SASL_PLAINTEXT"),
    ],
)
def test_the_protocol_is_the_listeners(secured: Secured, listener: str, protocol: str) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": secured.at(listener),
        "security.protocol": protocol,
        "ssl.ca.location": secured.files.ca,
        "log_level": 0,
    }
    if protocol.startswith("SASL"):
        settings |= {
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
        }
    if listener == "mutual":
        settings |= {
            "ssl.certificate.location": secured.files.client_certificate,
            "ssl.key.location": secured.files.client_key,
        }
    admin = AdminClient(settings)
    [node] = admin.list_topics(timeout=TIMEOUT_S).brokers
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node))
    [described] = admin.describe_configs([resource], request_timeout=TIMEOUT_S).values()
    address = described.result(TIMEOUT_S)["advertised.listeners"].value
    assert address == f"{protocol}://{secured.at(listener)}"
