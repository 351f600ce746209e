"""The rules that no type of the configuration expresses: names that are given twice, and values
that do not fit together."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from cellfeed.config.model import Config
from cellfeed.instance.config_file import load_config
from cellfeed.store.errors import InvalidRequest, ProtectData

CLUSTER = """
    datastore:
      clusters:
        - {{name: {cluster}, nodes: [{{name: {node}, url: "{url}"}}]}}
        - {{name: c2, nodes: [{{name: c2-a, url: "mysql://u:p@127.0.0.1:3322"}}]}}
"""
URL = "mysql://u:p@127.0.0.1:3321"


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "cellfeed.yaml"
    path.write_text(textwrap.dedent(text))
    return load_config(path)


def clusters(*, cluster: str = "c1", node: str = "c1-a", url: str = URL, more: str = "") -> str:
    return textwrap.dedent(CLUSTER.format(cluster=cluster, node=node, url=url)) + more


def managed(*nodes: str, node: str = "tls: {ca: /ca.pem}", more: str = "managed: true") -> str:
    listed = ", ".join((f"{{name: a, url: 'mysql://u:p@h', {node}}}", *nodes))
    also = "" if more == "managed: true" else ", managed: true"
    return f"datastore: {{clusters: [{{name: m, nodes: [{listed}], {more}{also}}}]}}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (clusters(cluster="c2"), "the name 'c2' is given twice among clusters and nodes"),
        (clusters(node="c2-a"), "the name 'c2-a' is given twice among clusters and nodes"),
        (clusters(node="c2"), "the name 'c2' is given twice among clusters and nodes"),
        (clusters(url="postgres://u:p@h"), "config: node c1-a: "),
        (managed("{name: b, url: 'mysql://u:p@h'}"), "cluster m is managed: .* take away nodes$"),
        (managed(more="failover: automatic"), "cluster m is managed: .* take away failover$"),
        (
            managed(node="replication: 'h:3306'"),
            "cluster m is managed: .* take away nodes: replication$",
        ),
        (
            managed() + "backups: [{directory: b, binlogs: true}]",
            "cluster m is managed: .* take away backups: binlogs$",
        ),
        (managed(node="tls: {certificate: /c}"), "node a: tls: certificate and key are given"),
        (managed(node="tls: {ca: ca.pem}"), "node a: tls: 'ca.pem' is not an absolute path"),
        (
            "triggers: [{app: a.py, name: a}, {app: b.py}]",
            "triggers: b.py has no name: of several entries each needs one",
        ),
        (
            "exports: [{name: lake, bootstrap: 'h:1'}, {name: lake, bootstrap: 'h:2'}]",
            "the export name 'lake' is given twice",
        ),
        (
            "backups: [{directory: b, name: one}, {directory: b, name: two}]",
            "two processes take backups into b",
        ),
        ("backups: [{directory: b, recipients: [age1nothing]}]", "backups: recipients: "),
        ("backups: [{directory: b, binlogs: true}]", "an embedded datastore has none"),
        (
            "backups: [{directory: b, every_s: 43, full_every_s: 86401}]",
            "2009 increments onto one full backup, at most 2000 are possible",
        ),
        (
            "backups: [{directory: b, keep_days: 1, full_every_s: 86400}]",
            "a full one goes only when a newer one is there, so lower full_every_s",
        ),
        (
            "gateways: [{listeners: [{name: a, port: 9093}, {name: a, port: 9094}]}]",
            "gateway has two listeners 'a'",
        ),
        (
            "gateways: [{port: 9099, listeners: [{name: a, port: 9093}]}]",
            "port and advertised_\\* are said for each of them",
        ),
        (
            "gateways: [{advertised_host: h, listeners: [{name: a, port: 9093}]}]",
            "port and advertised_\\* are said for each of them",
        ),
        (
            "gateways: [{advertised_port: 1, listeners: [{name: a, port: 9093}]}]",
            "port and advertised_\\* are said for each of them",
        ),
        (
            "datastore: {schemas: [{column: BASE, schema: taxi_trip}], topics: [{name: t, column:"
            " BASE, format: typed, body: record}]}",
            "config: topic t: body: record has no place for a body that fits no version",
        ),
        (
            "gateways: [{listeners: [{name: a, port: 9093, advertised: 'h:65536'}]}]",
            "listener 'a' advertises h:65536: a port is from 1 to 65535",
        ),
        (
            "gateways: [{listeners: [{name: a, port: 9093, advertised: 'h:0'}]}]",
            "listener 'a' advertises h:0: a port is from 1 to 65535",
        ),
        (
            "gateways: [{listeners: [{name: a, port: 9093, security: tls}]}]",
            "config: gateway: listener 'a': security tls needs certificate and key",
        ),
        (
            "workers: [{advertised: 'h:0'}]",
            "config: worker: advertised 'h:0': write HOST or HOST:PORT",
        ),
        ("workers: [{advertised: 'http://h'}]", "advertised 'http://h': write HOST or HOST:PORT"),
        (
            "workers: [{advertised: h, tls: {certificate: a, key: b}}]",
            "advertised 'h', and host '127.0.0.1' is loopback: no other host reaches it",
        ),
        (
            "wakeups: {token_file: t, key: k}",
            "config: wakeups: ssl_key is the key of ssl_certificate",
        ),
    ],
)
def test_contradicting_settings_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        clusters(),
        managed(),
        "triggers: [{app: a.py}]",
        "triggers: [{app: a.py, name: a}, {app: b.py, name: b}]",
        "exports: [{name: lake, bootstrap: 'h:1'}, {name: sea, bootstrap: 'h:1'}]",
        "backups: [{directory: b, name: one}, {directory: c, name: two}]",
        "backups: [{directory: b, every_s: 43.2, full_every_s: 86400}]",
        "backups: [{directory: b, keep_days: 2, full_every_s: 86400}]",
        clusters(more="backups: [{directory: b, binlogs: true}]"),
        "gateways: [{listeners: [{name: a, port: 9093}, {name: b, port: 9094}]}]",
        "gateways: [{listeners: [{name: a, port: 9093, advertised: 'h:65535'}]}]",
        "datastore: {schemas: [{column: BASE, schema: taxi_trip, unfit: park}, {column: NOTES,"
        " schema: taxi_trip}], topics: [{name: t, column: BASE, format: typed, body: record}]}",
        "gateways: [{port: 9099, advertised_host: h, advertised_port: 1}]",
    ],
)
def test_consistent_settings_are_accepted(tmp_path: Path, text: str) -> None:
    read(tmp_path, text)


def test_a_listener_that_would_show_every_cell_protects_data(tmp_path: Path) -> None:
    with pytest.raises(ProtectData, match="config: gateway: listener 'a'") as refused:
        read(tmp_path, "gateways: [{listeners: [{name: a, bind: 0.0.0.0, port: 9093}]}]")
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workers: [{advertised: feed.example}]", "connect over TLS only: give tls"),
        ("wakeups: {ca: ca.pem}", "wakeups: workers of other hosts ask for credentials"),
    ],
)
def test_wake_ups_beyond_loopback_without_tls_or_credentials_are_refused(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ProtectData, match=says):
        read(tmp_path, text)


@pytest.mark.parametrize("at", ["feed.example", "feed.example:7443", "[2001:db8::1]:7443"])
def test_a_worker_with_tls_may_be_advertised(tmp_path: Path, at: str) -> None:
    tls = "host: 0.0.0.0, tls: {certificate: a, key: b}"
    config = read(tmp_path, f"workers: [{{{tls}, advertised: '{at}'}}]\nwakeups: {{token_file: t}}")
    assert config.workers[0].advertised == at
