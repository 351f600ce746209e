"""A lake's entry of the configuration: secrets of its catalog, and its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.assembly.lakes import lake_named, lake_place
from cellfeed.cli.config import _without_passwords
from cellfeed.config.lake import LakeCatalogConfig, LakeConfig
from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import InvalidRequest, NotFound

LAKE = LakeConfig(
    storage="/srv/lake",
    catalog=LakeCatalogConfig(
        type="rest", uri="http://127.0.0.1:8181", properties={"token": "${env:CATALOG_TOKEN}"}
    ),
)


def test_a_catalogs_secret_is_read_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "abc")
    place = lake_place(LAKE, RunDir(tmp_path))
    assert (place.catalog, place.storage) == ({"token": "abc"}, Path("/srv/lake"))
    monkeypatch.delenv("CATALOG_TOKEN")
    with pytest.raises(InvalidRequest, match="CATALOG_TOKEN"):
        lake_place(LAKE, RunDir(tmp_path))


def test_shown_configurations_hide_the_secrets_of_catalogs() -> None:
    shown = _without_passwords({"properties": {"credential": "id:abc", "warehouse": "w"}})
    assert shown == {"properties": {"credential": "***", "warehouse": "w"}}


def test_a_lake_is_found_by_its_name() -> None:
    config = Config(lakes=[LakeConfig(name="a"), LakeConfig(name="b", storage="other")])
    assert [lake_named(config, name).name for name in (None, "b")] == ["a", "b"]
    with pytest.raises(NotFound, match="it has a, b"):
        lake_named(config, "c")
