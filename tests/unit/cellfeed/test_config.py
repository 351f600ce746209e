"""The configuration file: defaults that run, strict reading, and refusals that name the place and
the rule."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from cellfeed.config.checks import nodes_at
from cellfeed.config.json_schema import config_schema
from cellfeed.config.model import Config, TriggersConfig, WarehouseConfig
from cellfeed.config.servers import MariaDbServerConfig
from cellfeed.instance.config_file import check_config, load_config, write_config
from cellfeed.kinds.known import process_names
from cellfeed.schemas import load_json_schema
from cellfeed.servers.configured import own_clusters
from cellfeed.store.errors import InvalidRequest, ProtectData

ROOT = Path(__file__).parents[3]


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "cellfeed.yaml"
    path.write_text(text)
    return load_config(path)


def test_no_file_and_an_empty_file_are_an_embedded_store_with_a_worker_and_a_gateway(
    tmp_path: Path,
) -> None:
    for config in (load_config(None), read(tmp_path, ""), read(tmp_path, "# nothing\n")):
        assert (config.datastore.name, config.datastore.shards) == ("trips", 16)
        assert process_names(config) == [("worker", "worker"), ("gateway", "gateway")]
        hosts = [each.host for each in config.workers] + [each.host for each in config.gateways]
        assert set(hosts) == {"127.0.0.1"}


def test_processes_start_in_an_order_in_which_each_finds_its_servers(
    tmp_path: Path,
) -> None:
    config = read(
        tmp_path,
        """
        datastore: {name: rides, shards: 4}
        workers: [{name: w1, port: 0}, {name: w2, port: 0}]
        gateways: [{name: g1, port: 0, registry_port: 0}]
        triggers: [{app: "program.py", name: bills, processes: 2}]
        warehouses: [{name: lake}]
        """,
    )
    assert [name for name, _ in process_names(config)] == [
        "w1",
        "w2",
        "g1",
        "bills-1",
        "bills-2",
        "lake",
    ]


TWO_SERVERS = """
datastore:
  clusters:
    - name: c1
      nodes:
        - {{name: c1-a, url: "mysql://u:p@{first}"}}
        - {{name: c1-b, url: "mysql://u:p@{second}"}}
servers: [{{kind: mariadb, name: here, port: 3311, server_id: 1}}]
"""


def test_servers_start_before_everything_else(tmp_path: Path) -> None:
    config = read(tmp_path, TWO_SERVERS.format(first="127.0.0.1:3311", second="127.0.0.1:3312"))
    assert process_names(config)[:2] == [("here", "mariadb"), ("worker", "worker")]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_is_the_node_whose_address_is_its_own(tmp_path: Path, host: str) -> None:
    config = read(tmp_path, TWO_SERVERS.format(first="192.168.7.7:3311", second=f"{host}:3311"))
    [server] = config.servers
    assert isinstance(server, MariaDbServerConfig)
    assert [node.name for node in nodes_at(config, server)] == ["c1-b"]


def test_only_clusters_whose_nodes_are_all_servers_of_the_instance_are_its_own(
    tmp_path: Path,
) -> None:
    assert (
        own_clusters(
            read(tmp_path, TWO_SERVERS.format(first="127.0.0.1:3311", second="127.0.0.1:3312"))
        )
        == []
    )
    assert own_clusters(load_config(ROOT / "docker" / "production-local.yaml")) == ["c1", "c2"]


def test_a_server_that_no_node_or_two_nodes_use_is_refused(tmp_path: Path) -> None:
    for first, second, count in (
        ("127.0.0.1:3399", "192.168.7.7:3311", 0),
        ("127.0.0.1:3311", "localhost:3311", 2),
    ):
        with pytest.raises(InvalidRequest, match=f"server here on port 3311: .* and {count} are"):
            read(tmp_path, TWO_SERVERS.format(first=first, second=second))


def test_two_servers_never_have_one_server_id(tmp_path: Path) -> None:
    text = TWO_SERVERS.format(first="127.0.0.1:3311", second="127.0.0.1:3312")
    with pytest.raises(InvalidRequest, match="server_id 1 is given to two servers"):
        read(
            tmp_path,
            text.replace(
                "server_id: 1}",
                "server_id: 1}, {kind: mariadb, name: there, port: 3312, server_id: 1}",
            ),
        )


def test_the_written_configuration_is_read_back_unchanged(tmp_path: Path) -> None:
    config = Config(
        triggers=[TriggersConfig(app="a:b", settings={"x": [1, {"y": None}]})],
        warehouses=[WarehouseConfig(flush_age_s=0.5)],
        restart=True,
    )
    path = tmp_path / "config.yaml"
    write_config(config, path)
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workerz: []", "workerz"),
        ("workers: [{prot: 1}]", r"workers\[0\].*prot"),
        ("workers: [{port: 65536}]", r"65535.*\$\.workers\[0\]\.port"),
        ("workers: [{port: '80'}]", r"\$\.workers\[0\]\.port"),
        ("workers: [{port: true}]", r"\$\.workers\[0\]\.port"),
        ("workers: [{name: 'A b'}]", r"\$\.workers\[0\]\.name"),
        ("datastore: {shards: 0}", r"\$\.datastore\.shards"),
        ("datastore: {shards: 65537}", r"\$\.datastore\.shards"),
        ("datastore: {name: 'a/b'}", "a/b"),
        ("triggers: [{name: t}]", r"app.*\$\.triggers\[0\]"),
        ("warehouses: [{flush_rows: 0}]", r"\$\.warehouses\[0\]\.flush_rows"),
        ("lakes: [{format: hudi}]", r"\$\.lakes\[0\]\.format"),
        ("lakes: [{storage: 's3://b/p'}]", "config: lake lake: storage 's3://b/p' is a URL"),
        ("lakes: [{catalog: {type: rest}}]", "type rest needs a uri"),
        ("lakes: [{catalog: {uri: 'http://a'}}]", "type sqlite has none"),
        (
            "lakes: [{catalog: {type: rest, uri: 'http://a'}}]",
            "give an absolute path",
        ),
        (
            "lakes: [{format: delta, storage: /a, catalog: {type: rest, uri: 'http://a'}}]",
            "a Delta table has no catalog",
        ),
        ("lakes: [{client: {group.id: a}}]", r"client: group\.id is the loader's own"),
        ("restart: sometimes", r"\$\.restart"),
        ("- a list", "object"),
        ("false", "object"),
        ("[" * 10_000, "not YAML"),
        ("gateways: [{formats: {trips: protobuf}}]", r"protobuf.*\$\.gateways\[0\]\.formats"),
        ("datastore: {topics: [{column: BASE}]}", r"name.*\$\.datastore\.topics\[0\]"),
        ("datastore: {topics: [{name: trips@latest}]}", r"\$\.datastore\.topics\[0\]\.name"),
        (
            "datastore: {topics: [{name: a, format: xml}]}",
            r"xml.*\$\.datastore\.topics\[0\]\.format",
        ),
        (
            "datastore: {topics: [{name: a, filter: [{field: x, op: like}]}]}",
            r"like.*\$\.datastore\.topics\[0\]\.filter\[0\]\.op",
        ),
        (
            "datastore: {topics: [{name: trips.a}]}",
            r"datastore\.topics: topic trips\.a: .* give the view another name, as trips-a",
        ),
        (
            "datastore: {topics: [{name: a}]}\ngateways: [{formats: {a: json}}]",
            r"datastore\.topics: topic a: its format .* take it out",
        ),
        ("workers: [", "not YAML"),
        ("!!python/object/apply:os.getpid []", "not YAML"),
        ("workers: [{name: same}]\ngateways: [{name: same}]", "'same'.*twice"),
        ("servers: [{name: c1-a, port: 3311}]", r"kind.*\$\.servers\[0\]"),
        (
            "servers: [{kind: postgres, name: c1-a, port: 3311}]",
            r"postgres.*\$\.servers\[0\]\.kind",
        ),
        ("servers: [{kind: mariadb, name: c1-a, port: 3311}]", r"server_id.*\$\.servers\[0\]"),
        ("servers: [{kind: zookeeper, port: 0}]", r"\$\.servers\[0\]\.port"),
        ("servers: [{kind: zookeeper, server_id: 1}]", r"servers\[0\].*server_id"),
        (
            "servers: [{kind: mariadb, name: c1-a, port: 3311, server_id: 1}]",
            "server c1-a on port 3311: one storage node .* and 0 are",
        ),
        (
            "servers: [{kind: zookeeper, port: 2181}, {kind: kafka, port: 2181}]",
            "port 2181 is given to two servers",
        ),
        (
            "servers: [{kind: kafka, port: 9094, controller_port: 9094}]",
            "port 9094 is given to two servers",
        ),
        ("coordination: zookeepr://127.0.0.1", "'store' or zookeeper://"),
        ("coordination: zookeeper://127.0.0.1:x", "servers are host:port"),
        ("servers: [{kind: zookeeper, name: worker}]", "'worker'.*twice"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place_and_the_rule(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        read(tmp_path, text)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"nowhere\.yaml"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cellfeed.yaml"
    path.write_bytes(b"workers: \xff\xfe")
    with pytest.raises(InvalidRequest, match=r"cellfeed\.yaml"):
        load_config(path)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", ""])
@pytest.mark.parametrize("part", ["workers", "gateways"])
def test_a_host_beyond_loopback_is_refused_to_protect_data(
    tmp_path: Path, part: str, host: str
) -> None:
    with pytest.raises(ProtectData, match="loopback") as refused:
        read(tmp_path, f"{part}: [{{host: '{host}'}}]")
    assert refused.value.exit_code == 3


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_loopback_has_several_names(tmp_path: Path, host: str) -> None:
    assert read(tmp_path, f"workers: [{{host: '{host}'}}]").workers[0].host == host


def test_the_published_schema_follows_from_the_types() -> None:
    assert load_json_schema("config") == config_schema(), (
        "python -m cellfeed.config.json_schema > schemas/json/config.schema.json writes it again"
    )


def test_the_published_schema_accepts_and_refuses_the_same_files_as_the_reader() -> None:
    validator = jsonschema.Draft202012Validator(load_json_schema("config"))
    validator.validate(msgspec.to_builtins(check_config(Config())))
    for text in (
        "workerz: []",
        "workers: [{port: 65536}]",
        "datastore: {shards: 0}",
        "triggers: [{name: t}]",
    ):
        assert list(validator.iter_errors(yaml.safe_load(text))), text
