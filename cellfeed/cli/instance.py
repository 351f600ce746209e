"""Which instance a command speaks to: ``--run-dir`` (or CELLFEED_RUN_DIR) of a local one, or
``--url`` of its workers.

Only a command that opens the datastore itself imports the store: most speak HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cellfeed.cli.credentials import chosen
from cellfeed.cli.output import errors
from cellfeed.config.model import Config
from cellfeed.instance.addresses import worker_urls
from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound
from cellfeed.store.http.client import Client

if TYPE_CHECKING:
    from cellfeed.assembly.datastore import Opened

DEFAULT_RUN_DIR = Path("run")

RunDirOption = Annotated[
    Path, typer.Option("--run-dir", envvar="CELLFEED_RUN_DIR", help="The instance's run directory.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help=(
            "The YAML configuration that names the datastore and the coordination; the run"
            " directory's own when left out."
        ),
    ),
]
UrlOption = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        help=(
            "An HTTP worker's address, instead of the run directory's; may be given several times."
        ),
    ),
]
DatastoreOption = Annotated[
    str | None,
    typer.Option("--datastore", help="The datastore's name; the instance's own by default."),
]
IdentityOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--identity",
        metavar="FILE",
        help=(
            "A file with age identities (AGE-SECRET-KEY-1…), for encrypted backups; may be given"
            " several times."
        ),
    ),
]


def client_of(run_dir: Path, urls: list[str] | None, datastore: str | None) -> Client:
    """A client of the instance. After a second without an answer it prints the reason for the
    wait."""
    if datastore is None:
        config = RunDir(run_dir).config
        datastore = (
            load_config(config).datastore.name if config.exists() else Config().datastore.name
        )
    said: set[str] = set()

    def say(reason: str) -> None:
        if reason not in said:
            said.add(reason)
            errors.print(f"waiting: {reason}", highlight=False, markup=False)

    return Client(urls or worker_urls(run_dir), datastore, on_wait=say, **chosen)


def config_of(run_dir: Path, file: Path | None) -> Config:
    """The configuration of ``file``, or the run directory's own. Raises NotFound when the instance
    has never run: nothing is made here by mistake."""
    if file is None and not RunDir(run_dir).config.exists():
        raise NotFound(
            f"{run_dir} is not the run directory of an instance; name it with --run-dir, or a"
            " configuration with --config"
        )
    config = load_config(file or RunDir(run_dir).config)
    place = RunDir(run_dir).inside(config.datastore.directory) / config.datastore.name
    if not config.datastore.clusters and not place.exists():
        raise NotFound(
            f"there is no datastore in {place}: name the run directory of the instance with"
            " --run-dir, or make it with cellfeed up"
        )
    return config


@contextmanager
def opened_to(did: str, to: str, run_dir: Path) -> Iterator[Opened]:
    """As :func:`opened`, for an act that gives or takes rights: the audit log has it before. Raises
    StorageUnavailable where the log cannot be written."""
    from cellfeed.assembly.audit_logs import audit_command  # start-up: most verbs open no store

    audit_command(config_of(run_dir, None), run_dir, did, to)
    with opened(run_dir) as instance:
        yield instance


@contextmanager
def opened(run_dir: Path, file: Path | None = None) -> Iterator[Opened]:
    """Opens the instance of a run directory or of a configuration. Raises NotFound,
    StorageUnavailable."""
    from cellfeed.assembly import datastore  # start-up: most verbs open no store

    with datastore.opened(config_of(run_dir, file), RunDir(run_dir).path) as instance:
        yield instance
