"""The extras of the distribution, and the sentence for a command that needs a missing one.

``pip install cellfeed`` is the client alone: services that only put and read cells install two
packages more. A machine that runs an instance installs ``cellfeed[server]``, and an extra for each
system that it uses. The driver of MariaDB is in ``server``: it is pure Python, two megabytes, and
status, backups and restores serve either engine.

One distribution with extras, as Celery has them. The other way is a second distribution with a part
of the same package, as Prefect's client is. Two distributions that own the same files break each
other when one of them is upgraded or removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXTRAS: Final[Mapping[str, frozenset[str]]] = {
    "server": frozenset(
        {
            "crc32c",
            "cryptography",
            "fastavro",
            "jinja2",
            "joserfc",
            "kio",
            "litestar",
            "msgpack",
            "numpy",
            "prometheus_client",
            "psutil",
            "pymysql",
            "pymysqlreplication",
            "pyrage",
            "rich",
            "typer",
            "uvicorn",
            "uvloop",
            "yaml",
            "zstandard",
        }
    ),
    "zookeeper": frozenset({"kazoo"}),
    "export": frozenset({"confluent_kafka", "urllib3"}),
    "warehouse": frozenset({"duckdb", "pyarrow", "pytz"}),
    "lake": frozenset({"deltalake", "pyiceberg"}),
    "s3": frozenset({"boto3", "botocore"}),
    "oidc": frozenset({"authlib", "httpx"}),
}
"""The packages of each extra by the names that programs import. ``all`` has them together."""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """The sentence that says which extra to install; None where no extra has that package."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return (
                f"this needs the package {package!r}, which is not installed. Install the extra"
                f" that has it: pip install 'cellfeed[{extra}]'"
            )
    return None
