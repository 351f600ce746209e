"""One datastore over three hosts and its clients on a fourth, as people deploy it.

Each host has a MariaDB node, a server of the ZooKeeper ensemble, and ``cellfeed up`` with a worker,
a gateway and the failover supervisor. It has one of billing's three processes, by ``cellfeed run``:
the names of a trigger's processes are those of all hosts together. Nodes, their replication,
workers and gateways have TLS; ZooKeeper has none here.

Node and ZooKeeper server of a host listen on its loopback, behind proxies of the tests' own at its
address.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from cellfeed.assembly.datastore import Opened, opened
from cellfeed.config.gateway import GatewayListenerConfig, GatewayProcessConfig
from cellfeed.config.http import TlsConfig
from cellfeed.config.model import (
    ClusterConfig,
    Config,
    DatastoreConfig,
    NodeConfig,
    NodeTls,
    TriggersConfig,
    WorkerConfig,
)
from cellfeed.config.wakeups import WakeupsConfig
from cellfeed.instance.config_file import write_config
from cellfeed.kinds.known import process_names
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.client import Client
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.tokens import create_token
from cellfeed.store.security.users import allow, put_user
from tests.support import hosts as namespaces
from tests.support import local_mariadb, local_zookeeper
from tests.support.certificates import make_certificates
from tests.support.hosts import Host, Hosts
from tests.support.local_mariadb import MariaDB, new_server
from tests.support.local_zookeeper import ZooKeeper, part_of_an_ensemble
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
NAMES: Final = ("a", "b", "c")
SHARDS: Final = 8
LEASE_S: Final = 4.0
_MYSQL, _ZOOKEEPER, _HTTP, _KAFKA = 13306, 12181, 17443, 19093
_PASSWORD: Final = "of-the-cluster"
_UP_S: Final = 120.0


def why_not() -> str | None:
    """Why there can be none here; None when there can."""
    return namespaces.why_not() or local_mariadb.why_not() or local_zookeeper.why_not()


class SpreadInstance:
    """Made by :func:`spread_instance`. ``hosts``: a, b, c and ``clients``."""

    def __init__(
        self,
        directory: Path,
        hosts: Hosts,
        *,
        wakeups: bool,
        billing: bool,
        zookeeper: bool,
        workers: Sequence[str],
        gateways: Sequence[str],
    ) -> None:
        self.workers, self.gateways = workers, gateways
        self.hosts, self.directory = hosts, directory
        self._has_wakeups, self._has_billing, self._has_zookeeper = wakeups, billing, zookeeper
        self.billing = directory / "billing"
        self.files = make_certificates(directory / "tls", addresses=[h.address for h in hosts])
        for path in (directory, *(directory / "tls").rglob("*"), directory / "tls"):
            path.chmod(0o755)
        self.token_file = directory / "token"
        self.nodes: dict[str, MariaDB] = {}
        self.zookeepers: dict[str, ZooKeeper] = {}
        self.proxies: dict[str, list[TcpProxy]] = {name: [] for name in NAMES}
        self._ups: dict[str, subprocess.Popen[bytes]] = {}
        self._billings: dict[str, subprocess.Popen[bytes]] = {}

    # --- names and addresses ----------------------------------------------------------------------

    @property
    def sides(self) -> list[Host]:
        return [self.hosts[name] for name in NAMES]

    @property
    def urls(self) -> list[str]:
        return [f"https://{self.hosts[name].address}:{_HTTP}" for name in self.workers]

    def bootstrap(self, names: Sequence[str] = NAMES) -> str:
        return ",".join(f"{self.hosts[name].address}:{_KAFKA}" for name in names)

    @cached_property
    def kafka_client(self) -> dict[str, Any]:
        """Settings of a Kafka client, but for its servers."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "reader",
            "sasl.password": _PASSWORD,
            "ssl.ca.location": self.files.ca,
        }

    def client(self, names: Sequence[str] = NAMES, **settings: Any) -> Client:
        urls = [f"https://{self.hosts[name].address}:{_HTTP}" for name in names]
        return Client(urls, "trips", token_file=self.token_file, ssl_ca=self.files.ca, **settings)

    def run_dir(self, name: str) -> RunDir:
        return RunDir(self.directory / f"run-{name}")

    def config(self, name: str, *, triggers: bool = False) -> Config:
        """Of one host: of ``cellfeed up`` there, or of its trigger process."""
        tls = TlsConfig(self.files.certificate, self.files.key)
        at = self.hosts[name].address
        nodes = [
            NodeConfig(
                f"node-{host.name}",
                f"mysql://app:{_PASSWORD}@{host.address}:{_MYSQL}",
                tls=NodeTls(ca=self.files.ca),
            )
            for host in self.sides
        ]
        cluster = ClusterConfig("c1", nodes, failover="automatic")
        ensemble = ",".join(f"{host.address}:{_ZOOKEEPER}" for host in self.sides)
        listener = GatewayListenerConfig(
            "hosts",
            bind=at,
            port=_KAFKA,
            security="sasl_tls",
            certificate=self.files.certificate,
            key=self.files.key,
        )
        billing = TriggersConfig(
            "cellfeed.consumers.billing.app:program",
            name="billing",
            processes=len(NAMES),
            lease_s=LEASE_S,
            settings={"billing_dir": str(self.billing)},
        )
        return Config(
            datastore=DatastoreConfig(shards=SHARDS, clusters=[cluster]),
            workers=[]
            if triggers or name not in self.workers
            else [WorkerConfig(f"worker-{name}", at, _HTTP, tls, advertised=at)],
            gateways=[]
            if triggers or name not in self.gateways
            else [
                GatewayProcessConfig(
                    name=f"gateway-{name}",
                    listeners=[listener],
                    registry_port=0,
                    group_initial_delay_s=0,
                )
            ],
            triggers=[billing] if triggers else [],
            coordination=f"zookeeper://{ensemble}/feed?timeout_s=4"
            if self._has_zookeeper
            else "store",
            wakeups=WakeupsConfig(self.files.ca, str(self.token_file))
            if self._has_wakeups
            else None,
            checks=None,
        )

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """The datastore, by the calling thread, which must be on a host."""
        with opened(self.config("a"), self.directory) as found:
            yield found

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Servers, then the datastore with its users, then every process. Called on ``clients``."""
        options = (
            f"--ssl-ca={self.files.ca}",
            f"--ssl-cert={self.files.certificate}",
            f"--ssl-key={self.files.key}",
        )
        account = f"CREATE USER app@'%' IDENTIFIED BY '{_PASSWORD}' REQUIRE SSL"
        for number, host in enumerate(self.sides, 1):
            with host.entered():
                node = new_server(self.directory / f"node-{host.name}", number, options)
                node.port = _MYSQL
                self.nodes[host.name] = node
                node.launch()
                ports = [_MYSQL]
                if self._has_zookeeper:
                    addresses = [each.address for each in self.sides]
                    self.zookeepers[host.name] = part_of_an_ensemble(
                        self.directory / f"zookeeper-{host.name}", _ZOOKEEPER, addresses, number
                    )
                    self.zookeepers[host.name].launch()
                    ports.append(_ZOOKEEPER)
                self.proxies[host.name] += [TcpProxy(p, at=(host.address, p)) for p in ports]
        for host in self.sides:
            with host.entered():
                self.nodes[host.name].wait_until_it_answers()
                self.nodes[host.name].sql(
                    "SET SESSION sql_log_bin = 0", account, "GRANT ALL ON *.* TO app@'%'"
                )
        for name, zookeeper in self.zookeepers.items():
            with self.hosts[name].entered():
                zookeeper.wait_until_it_answers()
        for name in NAMES:
            write_config(self.config(name), self.directory / f"{name}.yaml")
        self._cellfeed("cluster", "init", "--config", str(self.directory / "a.yaml"))
        with self.opened() as found:
            state = found.datastore.state
            put_user(state, "reader", _PASSWORD, is_new=True)
            for operation, kind, what in (
                ("read", "datastore", "trips"),
                ("put", "datastore", "trips"),
                ("read", "topic", "*"),
                ("read", "group", "*"),
            ):
                allow(state, Acl("reader", kind, what, operation))
            self.token_file.write_text(create_token(state, "reader", 3600.0))
        for name in NAMES:
            self.up(name)
        for name in NAMES:
            self.wait_until_up(name)

    def up(self, name: str) -> None:
        """``cellfeed up`` on a host, and its trigger process."""
        config, run_dir = self.directory / f"{name}.yaml", self.run_dir(name).path
        self._ups[name] = self._begun(
            name, "up", "--config", str(config), "--run-dir", str(run_dir)
        )
        if self._has_billing:
            number = NAMES.index(name) + 1
            directory = self.run_dir(f"{name}-triggers")
            directory.make()
            write_config(self.config(name, triggers=True), directory.config)
            arguments = ("--run-dir", str(directory.path), f"billing-{number}")
            self._billings[name] = self._begun(name, "run", *arguments)

    def _begun(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (
            self.hosts[name].entered(),
            (self.directory / f"{arguments[0]}-{name}.log").open("ab") as log,
        ):
            return subprocess.Popen(
                [sys.executable, "-m", "cellfeed.cli.main", *arguments],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_up(self, name: str) -> None:
        up, wanted = self._ups[name], len(process_names(self.config(name)))

        def is_up() -> bool:
            assert up.poll() is None, (self.directory / f"up-{name}.log").read_text()[-3000:]
            return len(self.run_dir(name).processes()) >= wanted

        wait_until(is_up, f"host {name} is up", _UP_S)

    def power_on(self, name: str) -> None:
        """After :meth:`Host.lose_power`: the servers, the cable, then ``cellfeed up``."""
        host = self.hosts[name]
        self._wait_for_the_dead(name)
        with host.entered():
            self.nodes[name].kill()
            self.nodes[name].start()
            if name in self.zookeepers:
                self.zookeepers[name].kill()
                self.zookeepers[name].launch()
        for proxy in self.proxies[name]:
            proxy.up()
        host.heal()
        self.up(name)

    def lose_power(self, name: str) -> list[int]:
        """The pids of the host's processes, which are gone."""
        killed = self.hosts[name].lose_power()
        for proxy in self.proxies[name]:
            proxy.down()
        return killed

    def _wait_for_the_dead(self, name: str) -> None:
        for processes in (self._ups, self._billings):
            if name in processes:
                processes[name].wait(20)

    def delay(self, name: str, seconds: float) -> None:
        """Makes the host's servers slow, each way; 0 ends it."""
        for proxy in self.proxies[name]:
            proxy.delay(seconds)

    def master(self) -> str:
        """The name of the host whose node is the master. Called on a host that reaches them."""
        for host in self.sides:
            with host.entered():
                node = self.nodes[host.name]
                if node.is_running() and node.sql("SELECT @@global.read_only") == [(0,)]:
                    return host.name
        raise RuntimeError("there is no master just now")

    def close(self) -> None:
        for name in NAMES:
            for proxy in self.proxies[name]:
                proxy.close()
        for host in self.sides:
            host.lose_power()
        for name in NAMES:
            self._wait_for_the_dead(name)
        for node in self.nodes.values():
            node.kill()
        for zookeeper in self.zookeepers.values():
            zookeeper.kill()

    def _cellfeed(self, *arguments: str) -> None:
        with self.hosts["a"].entered():
            done = subprocess.run(
                [sys.executable, "-m", "cellfeed.cli.main", *arguments],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"cellfeed {' '.join(arguments)}: {done.stdout}{done.stderr}")


@contextmanager
def spread_instance(
    *,
    wakeups: bool = True,
    billing: bool = True,
    zookeeper: bool = True,
    workers: Sequence[str] = NAMES,
    gateways: Sequence[str] = NAMES,
) -> Iterator[SpreadInstance]:
    """All of it, running, with workers and gateways on these hosts. The calling thread is on the
    host ``clients`` inside. Raises RuntimeError, with the reason, where there can be none."""
    if reason := why_not():
        raise RuntimeError(reason)
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-hosts-"))
    try:
        with ExitStack() as stack:
            hosts = stack.enter_context(Hosts([*NAMES, "clients"], "clients"))
            stack.enter_context(hosts["clients"].entered())
            made = SpreadInstance(
                directory,
                hosts,
                wakeups=wakeups,
                billing=billing,
                zookeeper=zookeeper,
                workers=workers,
                gateways=gateways,
            )
            stack.callback(made.close)
            made.start()
            wait_until(lambda: _answers(made), "the workers answer", _UP_S)
            yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _answers(made: SpreadInstance) -> bool:
    try:
        for name in made.workers:
            with made.client([name], timeout_s=5.0) as client:
                client.heads()
    except CellfeedError:
        return False
    return True
