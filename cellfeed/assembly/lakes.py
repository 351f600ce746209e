"""A lake's entry of the configuration, as its consumer takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cellfeed.config.lake import LakeConfig
from cellfeed.config.model import Config
from cellfeed.consumers.lake.open_table import Place
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound
from cellfeed.store.secret_references import resolved


def lake_place(lake: LakeConfig, directory: RunDir) -> Place:
    """With the catalog's secrets. Raises InvalidRequest for a reference that leads nowhere."""
    return Place(
        format=lake.format,
        storage=directory.inside(lake.storage),
        namespace=lake.namespace,
        rest_uri=lake.catalog.uri,
        catalog={name: resolved(text) for name, text in lake.catalog.properties.items()},
    )


@contextmanager
def lake_schemas(
    lake: LakeConfig, config: Config, directory: Path
) -> Iterator[Callable[[], dict[str, list[str]]] | None]:
    """Asks the datastore for the columns with a schema, and their versions as text; None where the
    lake has no typed tables. Raises StorageUnavailable, ProtectData."""
    wanted = lake.typed if lake.typed is not None else bool(config.datastore.schemas)
    if not wanted:
        yield None
        return
    # Large modules, which a lake without typed tables does not need.
    from cellfeed.assembly.datastore import open_datastore
    from cellfeed.bridge.typed.stored_columns import stored_columns

    with open_datastore(config, directory) as datastore:
        yield lambda: {
            column: [version.body for version in stored.versions]
            for column, stored in stored_columns(datastore.state).items()
        }


def lake_topic(lake: LakeConfig, config: Config) -> str:
    """The topic that it loads."""
    return lake.topic or config.datastore.name


def lake_named(config: Config, name: str | None) -> LakeConfig:
    """The entry of that name; the first one without. Raises NotFound."""
    for lake in config.lakes:
        if name in (None, lake.name):
            return lake
    raise NotFound(
        f"the configuration has no lake {name or ''}".rstrip()
        + f"; it has {', '.join(each.name for each in config.lakes) or 'none'}"
    )
