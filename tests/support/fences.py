"""The fenced blocks of README and guides as pieces that can be run: each command line, or a program
or file as a whole. A piece is run by ``tests/integration/cli/test_guides.py`` in the order of its
page, or ``ELSEWHERE`` names the test that runs it, or ``NOT_RUN`` has the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.support.cli_instance import ROOT

PAGES: Final = sorted(
    {
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
        ROOT / "SECURITY.md",
        ROOT / "examples" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    }
)
_FENCE: Final = re.compile(r"^( *)(`{3,}) *([^\n`]*)\n(.*?)^ *\2 *$", re.MULTILINE | re.DOTALL)

_DOCS: Final = "tests/integration/cli/test_docs.py::"
_OPERATORS: Final = "tests/integration/cli/test_operators_guide.py::"
_COMMANDS: Final = "tests/integration/cli/commands/"
_EXAMPLES: Final = "tests/clients/test_examples.py::"
_CONSUMERS: Final = _EXAMPLES + "test_a_consumer_prints_each_trip_and_after_a_restart_only_new_ones"
_SHARD: Final = (
    "tests/integration/cli/test_cli_shard.py::"
    "test_the_commands_of_the_guide_add_a_cluster_fill_it_and_drain_the_other"
)
_DOCTOR: Final = (
    "tests/integration/cli/test_doctor.py::test_an_instance_that_is_well_has_no_problem"
)
_RECIPES: Final = "tests/ecosystem/test_recipes.py::"
_CLUSTERS: Final = (
    _OPERATORS + "test_clusters_are_restored_their_nodes_replaced_and_their_schema_upgraded"
)
_RESTORED: Final = _OPERATORS + "test_an_embedded_datastore_is_backed_up_and_restored"
_TRIMMED: Final = _OPERATORS + "test_an_embedded_datastore_is_trimmed_and_a_row_of_it_erased"

OF_LANGUAGES: Final = {
    "yaml": _DOCS + "test_every_configuration_in_a_page_is_valid",
    "{eval-rst}": "tests/integration/cli/test_site.py::test_the_reference_has_every_public_name",
}
TESTS_IN_A_PAGE: Final = _DOCS + "test_tests_in_a_page_pass"

ELSEWHERE: Final[Mapping[str, Mapping[str, str]]] = {
    "README.md": {
        "make demo": "tests/integration/cli/test_demo.py::"
        "test_the_demo_proves_every_figure_and_leaves_nothing_running",
    },
    "examples/README.md": {
        ".venv/bin/cellfeed up": _EXAMPLES + "place",
        ".venv/bin/python examples/service.py": _EXAMPLES + "place",
        "curl": _EXAMPLES + "test_a_trip_that_the_service_took_can_be_read_with_its_receipt",
        ".venv/bin/cellfeed triggers lag": _EXAMPLES
        + "test_a_trip_that_the_service_took_can_be_read_with_its_receipt",
        ".venv/bin/python examples/consumer.py": _CONSUMERS,
        ".venv/bin/python -m cellfeed.servers.kafka_jars": _CONSUMERS,
        "java": _CONSUMERS,
        "go -C": _CONSUMERS,
        ".venv/bin/python examples/fares.py": _EXAMPLES
        + "test_the_warehouse_query_sums_the_fares_of_the_cells",
        "mvn": _EXAMPLES + "test_the_spark_job_sums_the_fares_of_the_cells",
        "spark-submit": _EXAMPLES + "test_the_spark_job_sums_the_fares_of_the_cells",
    },
    "docs/operate/managed-mysql.md": {
        "CREATE USER": "tests/integration/clusters/managed/test_operating.py::"
        "test_the_grants_of_the_guide_are_those_that_the_tests_run_with",
    },
    "docs/recipes.md": {
        "import json\nfrom urllib": "tests/ecosystem/test_spark.py::test_a_batch",
        "import json\n\nimport bytewax": _RECIPES + "test_bytewax",
        "from pyspark": "tests/ecosystem/test_spark.py::test_a_stream",
        "packages=": "tests/ecosystem/test_spark.py::test_a_stream",
        "until spark-submit": "tests/ecosystem/test_spark.py::test_a_stream",
        "SET": "tests/ecosystem/test_flink.py::test_flink_sql",
        "newest=": "tests/ecosystem/test_flink.py::test_flink_sql",
        "exec sql-client.sh": "tests/ecosystem/test_flink.py::test_flink_sql",
        "from quixstreams": _RECIPES + "test_quix_streams",
        "import faust": _RECIPES + "test_faust",
        "mkdir -p recovery": _RECIPES + "test_bytewax",
        "python -m bytewax.run": _RECIPES + "test_bytewax",
        "bootstrap.servers": _RECIPES + "test_kafka_connect",
        "{": _RECIPES + "test_kafka_connect",
        "clusters=": _RECIPES + "test_mirror_maker",
        "import java": _RECIPES + "test_kafka_streams",
    },
    "docs/lake.md": {
        "cellfeed lake": _COMMANDS + "test_lake.py::test_a_lake_is_loaded_asked_and_verified",
        "from pyiceberg": _COMMANDS + "test_lake.py::test_a_lake_is_loaded_asked_and_verified",
    },
    "docs/clusters.md": {
        "cellfeed cluster init --config cellfeed.yaml                    #": _SHARD,
        "cellfeed shard": _SHARD,
        "cellfeed rebalance": _SHARD,
    },
    "docs/operate/watch.md": {"cellfeed doctor": _DOCTOR},
    "docs/operate/doctor.md": {"cellfeed doctor": _DOCTOR},
    "docs/deploy/probes.md": {
        "curl -s localhost:8090/readyz": "tests/integration/deploy/test_readiness.py::"
        "test_every_kind_is_ready_on_a_port_of_its_own"
    },
    "docs/operate/back-up.md": {"cellfeed backup": _RESTORED},
    "docs/operate/restore.md": {
        "cellfeed restore /srv/backups --into /srv/cellfeed --config /srv/clusters.yaml": _CLUSTERS,
        "cellfeed cluster status": _CLUSTERS,
        "": _RESTORED,
    },
    "docs/operate/trim.md": {"cellfeed trim --all": _TRIMMED, "cellfeed trim --history": _TRIMMED},
    "docs/operate/erase.md": {
        "cellfeed erase 7d444840-9dc0-11d1-b245-5ffdce74fad2 --yes": _TRIMMED
    },
    "docs/operate/scrub.md": {"cellfeed scrub --run-dir": _TRIMMED},
    "docs/operate/grow.md": {"": _CLUSTERS},
    "docs/operate/run.md": {
        "cellfeed backup create": _CLUSTERS,
        "cellfeed down --run-dir /srv/cellfeed                                   #": _CLUSTERS,
        "cellfeed cluster migrate": _CLUSTERS,
        "cellfeed up --detach --config /srv/clusters.yaml": _CLUSTERS,
    },
    "docs/operate/coordination.md": {
        "cellfeed offsets show": "tests/integration/triggers/zookeeper/test_histories.py::"
        "test_offsets_that_were_lost_are_shown_and_set_by_the_command_line",
        "cellfeed offsets set": "tests/integration/triggers/zookeeper/test_histories.py::"
        "test_offsets_that_were_lost_are_shown_and_set_by_the_command_line",
        "cellfeed offsets accept": "tests/integration/triggers/zookeeper/test_histories.py::"
        "test_consumer_groups_that_wait_after_a_rollback_are_shown_and_resumed_by_the_command_line",
    },
}
"""By page and the beginning of a piece the test, or its fixture, that runs it as it stands or with
other places."""

_MANY_SERVERS: Final = "needs MariaDB servers; the verb runs in tests/integration/clusters"
_BY_HAND: Final = "for people who work on the code; the targets are what runs this test"
NOT_RUN: Final[Mapping[str, Mapping[str, str]]] = {
    "README.md": {"make test": "it is what runs this test"},
    "CONTRIBUTING.md": {"": _BY_HAND},
    "docs/inside/cluster-model.md": {
        "$ make model": "minutes of CPU; tests/unit/store/clusters has the model's own tests",
        "$ .venv/bin/python -m docs.inside.cluster_model": "likewise",
    },
    "docs/deploy/docker.md": {
        "": "needs a Docker engine; tests/integration/deploy reads the files"
    },
    "docs/deploy/probes.md": {"# {": "the answer to the line before"},
    "docs/deploy/kubernetes.md": {"": "needs a cluster; tests/ecosystem/test_deploy.py renders it"},
    "docs/deploy/systemd.md": {"": "changes the host; tests/integration/deploy checks the units"},
    "docs/clusters.md": {"cellfeed": _MANY_SERVERS},
    "docs/exports.md": {
        "cellfeed": "needs a Kafka cluster; the verbs run in"
        " tests/integration/export/test_export_cli.py"
    },
    "docs/operate/trim.md": {"cellfeed trim --shard": "needs 120,000 cells in one shard"},
    "docs/operate/erase.md": {"": "asks a person; the line below answers for it"},
    "docs/operate/scrub.md": {"cellfeed scrub --config": _MANY_SERVERS},
    "docs/operate/damage.md": {
        "cellfeed check --config": _MANY_SERVERS,
        "cellfeed check --repair --config": _MANY_SERVERS,
    },
    "docs/operate/dictionaries.md": {"cellfeed dictionary recover --from": _MANY_SERVERS},
    "docs/operate/run.md": {
        "make services": "installs packages as root",
        "cellfeed up --config docker/production-local.yaml": "takes 1.9 GB and eight servers; its"
        " parts run in tests/integration",
    },
    "docs/indexes.md": {
        "table: trips_by_driver": "the text of schemas/indexes/trips_by_driver.yaml, which is run"
    },
    "docs/kafka-consumers.md": {
        "bootstrap.servers": "the worker of tests/clients/test_kafka_connect.py, which is run"
    },
}


class Piece(NamedTuple):
    """Of a page: ``text`` is a command line of a block of commands, or a whole block."""

    page: str
    language: str
    text: str

    @property
    def begins(self) -> str:
        return self.text.split("\n", 1)[0]

    def listed(self, among: Mapping[str, Mapping[str, str]]) -> str | None:
        """The entry that a list has for it: the longest beginning counts."""
        found = among.get(self.page, {})
        fitting = [each for each in found if self.text.startswith(each)]
        return found[max(fitting, key=len)] if fitting else None

    @property
    def run_by(self) -> str | None:
        """The test that runs it; None for one that ``test_guides.py`` runs."""
        if self.language == "python" and "\ndef test_" in self.text:
            return TESTS_IN_A_PAGE
        return OF_LANGUAGES.get(self.language) or self.listed(ELSEWHERE)


def pieces(page: str | None = None) -> list[Piece]:
    """Those of a page, or of all, in order."""
    found: list[Piece] = []
    for path in PAGES:
        name = path.relative_to(ROOT).as_posix()
        if page not in (None, name) or not path.exists():
            continue
        for _, _, language, text in _FENCE.findall(path.read_text()):
            commands = language in ("sh", "console")
            lines = [line for line in text.splitlines() if line.strip()] if commands else [text]
            if language == "console":
                lines = [line for line in lines if line.startswith("$ ")]
            found += [Piece(name, language, line) for line in lines]
    return found


def to_be_run_here(page: str) -> list[Piece]:
    """The pieces of a page that ``test_guides.py`` runs, in order."""
    return [
        piece for piece in pieces(page) if piece.run_by is None and piece.listed(NOT_RUN) is None
    ]


def blocks() -> int:
    """How many fenced blocks there are."""
    return sum(len(_FENCE.findall(path.read_text())) for path in PAGES if path.exists())
