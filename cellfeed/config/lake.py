"""A lake's loader: the format of its tables, their catalog, and where the records come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from cellfeed.config.gateway import Port
from cellfeed.config.servers import ProcessName
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.secret_references import resolved_settings

_OURS: Final = frozenset(
    {
        "bootstrap.servers",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "enable.partition.eof",
        "partition.assignment.strategy",
    }
)
"""Settings of the client that exactly-once rests upon: nobody else sets them."""


class LakeCatalogConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """The catalog of Iceberg tables: a SQLite file in the storage folder, or the ``uri`` of a
    server with the REST interface. ``properties``: further ones of pyiceberg (token, credential,
    warehouse …); a secret may stand as ``${env:NAME}`` or ``${file:/path}``."""

    type: Literal["sqlite", "rest"] = "sqlite"
    uri: str | None = None
    properties: dict[str, str] = {}


class LakeConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """A lake's loader: a consumer that writes Iceberg or Delta tables. ``storage``: the folder
    of the tables; a relative one lies in the run directory. ``bootstrap`` defaults to the first
    gateway, ``topic`` to the datastore's full topic; ``client``: further settings of the Kafka
    client (TLS, SASL). ``commit_age_s``: how long a cell waits for its commit at most, seconds.
    ``typed``: whether columns with a schema have typed tables, for which the process opens the
    datastore; by default where the configuration declares ``schemas``. ``metrics_port``: where the
    process answers Prometheus on loopback; nowhere without."""

    name: ProcessName = "lake"
    format: Literal["iceberg", "delta"] = "iceberg"
    storage: str = "lake"
    catalog: LakeCatalogConfig = LakeCatalogConfig()
    namespace: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,60}$")] = "cellfeed"
    bootstrap: str | None = None
    topic: str | None = None
    group: str = "lake"
    client: dict[str, str | int | float | bool] = {}
    commit_age_s: Annotated[float, Meta(ge=0.1, le=600)] = 5.0
    typed: bool | None = None
    metrics_port: Port | None = None

    def check(self) -> None:
        """Checks rules that no type expresses. Raises InvalidRequest."""
        where = f"config: lake {self.name}"
        if "://" in self.storage:
            raise InvalidRequest(
                f"{where}: storage {self.storage!r} is a URL; it is a folder on a local disk"
            )
        if (self.catalog.type == "rest") != (self.catalog.uri is not None):
            raise InvalidRequest(
                f"{where}: catalog: type rest needs a uri, and type sqlite has none: its file is in"
                " the storage folder"
            )
        if self.catalog.type == "rest" and not Path(self.storage).is_absolute():
            raise InvalidRequest(
                f"{where}: storage {self.storage!r} is relative to the run directory, and other"
                " programs read it by the catalog: give an absolute path"
            )
        if self.format == "delta" and self.catalog != LakeCatalogConfig():
            raise InvalidRequest(f"{where}: a Delta table has no catalog: take catalog out")
        try:
            resolved_settings(self.client)
        except InvalidRequest as error:
            raise InvalidRequest(f"{where}: client: {error}") from None
        if taken := sorted(_OURS & set(self.client)):
            raise InvalidRequest(
                f"{where}: client: {taken[0]} is the loader's own, exactly-once rests upon it; take"
                " it out"
            )
