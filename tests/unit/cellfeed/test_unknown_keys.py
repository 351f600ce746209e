"""Unknown keys of a configuration: named by their path, with the key that was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.config.model import Config
from cellfeed.instance.config_file import load_config
from cellfeed.store.errors import InvalidRequest


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "cellfeed.yaml"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as error:
        load_config(path)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workerz: []", "the file has an unknown key 'workerz': did you mean 'workers'?"),
        ("workers: [{prt: 1}]", "workers[0] has an unknown key 'prt': did you mean 'port'?"),
        (
            "workers: [{}, {ports: 1}]",
            "workers[1] has an unknown key 'ports': did you mean 'port'?",
        ),
        (
            "datastore: {clusters: [{name: c, nodes: [{name: a, uri: x}]}]}",
            "datastore.clusters[0].nodes[0] has an unknown key 'uri': did you mean 'url'?",
        ),
        (
            "servers: [{kind: kafka, port: 1, controler_port: 2}]",
            "servers[0] has an unknown key 'controler_port': did you mean 'controller_port'?",
        ),
        (
            "gateways: [{blocks: {memory: 1}}]",
            "gateways[0].blocks has an unknown key 'memory': did you mean 'memory_bytes'?",
        ),
        ("shards: 4", "an unknown key 'shards' (it is one of Datastore, Cluster); known are serv"),
        ("1: 2", "the file has an unknown key '1'; known are servers"),
    ],
)
def test_an_unknown_key_is_reported_with_the_similar_known_one(
    tmp_path: Path, text: str, says: str
) -> None:
    assert says in refused(tmp_path, text)


def test_all_unknown_keys_are_named_at_once(tmp_path: Path) -> None:
    said = refused(tmp_path, "restrat: true\nworkers: [{prt: 1, hots: x}]")
    assert said.count("did you mean") == 3


def test_settings_of_a_trigger_may_have_any_key(tmp_path: Path) -> None:
    path = tmp_path / "cellfeed.yaml"
    path.write_text("triggers: [{app: a.py, settings: {anything: {goes: 1}}}]")
    assert load_config(path).triggers[0].settings == {"anything": {"goes": 1}}


def test_a_wrong_value_without_an_unknown_key_is_named_as_before(tmp_path: Path) -> None:
    assert "$.workers[0].port" in refused(tmp_path, "workers: [{port: x}]")


@pytest.mark.parametrize(
    "text", ["workers: []\nworkers: []", "workers: [{port: 1, name: a, port: 2}]"]
)
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, text: str) -> None:
    assert "is given twice" in refused(tmp_path, text)


def test_merged_mappings_may_replace_keys(tmp_path: Path) -> None:
    path = tmp_path / "cellfeed.yaml"
    path.write_text("workers: [&a {name: one, port: 1}, {<<: *a, name: two}]")
    assert [worker.name for worker in load_config(path).workers] == ["one", "two"]
    assert isinstance(load_config(path), Config)
