"""Values that commands take as text: one meaning each, or a refusal in words."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cellfeed.assembly.clusters import shard_map
from cellfeed.cli import cells
from cellfeed.cli.main import command_line
from cellfeed.cli.shard_moving import shards_named
from cellfeed.config.model import ClusterConfig, Config, DatastoreConfig, NodeConfig
from cellfeed.store.errors import InvalidLocation, InvalidRequest, UnknownShard

ODD_DIGIT = "²"
"""A digit to Python's ``isdigit``, and no number to its ``int``."""


def test_shards_are_named_by_numbers_and_ranges_with_both_ends() -> None:
    assert shards_named("3", 16) == [3]
    assert shards_named("3, 8-10,9,15-15", 16) == [3, 8, 9, 10, 15]


@pytest.mark.parametrize("text", ["", "a", "-3", "3,,4", "3-a", ODD_DIGIT, f"3-{ODD_DIGIT}"])
def test_text_that_names_no_shards_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not of the form 3,8-15"):
        shards_named(text, 16)


def test_a_range_from_high_to_low_is_an_error_and_not_empty() -> None:
    with pytest.raises(InvalidRequest, match="--shard 8-3 names no shard"):
        shards_named("1,8-3", 16)


@pytest.mark.parametrize("text", ["16", "8-16"])
def test_a_shard_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(UnknownShard):
        shards_named(text, 16)


def test_a_location_is_an_added_id_or_a_moment() -> None:
    assert cells._location("0012") == 12
    assert cells._location("2019-03-23T20:21:09Z") == datetime(2019, 3, 23, 20, 21, 9, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "x", "-1", ODD_DIGIT, "9" * 20, "2019-03-23T20:21:09"])
def test_text_that_is_no_location_is_refused_in_words(text: str) -> None:
    with pytest.raises(InvalidLocation):
        cells._location(text)


@pytest.mark.parametrize("ref_key", ["--5", "5-", ODD_DIGIT, "9" * 20])
def test_a_ref_key_that_is_no_number_is_the_name_of_a_field(tmp_path: Path, ref_key: str) -> None:
    file = tmp_path / "trips.csv"
    file.write_text("id,n\n1,2\n")
    words = ["load", str(file), "--column", "BASE", "--row-key", "id", f"--ref-key={ref_key}"]
    result = CliRunner().invoke(command_line("load"), words)
    assert isinstance(result.exception, InvalidRequest)
    assert f"has no field {ref_key!r}" in str(result.exception)


def clusters(*shards: str | None) -> Config:
    nodes = [NodeConfig("n", "mysql://u:p@127.0.0.1:3321")]
    given = [ClusterConfig(f"c{number}", nodes, each) for number, each in enumerate(shards)]
    return Config(datastore=DatastoreConfig(clusters=given))


def test_clusters_divide_the_shards_by_their_ranges() -> None:
    assert shard_map(clusters("0-6, 15", "7-14")).by_shard() == ["c0"] * 7 + ["c1"] * 8 + ["c0"]
    assert shard_map(clusters(None, None)).by_shard().count("c1") == 8


@pytest.mark.parametrize(
    ("shards", "says"),
    [
        (("0-7", None), "either every cluster names its shards, or none does"),
        ((f"0-{ODD_DIGIT}", "8-15"), "is not of the form 0-2047,3000"),
        (("0-7,", "8-15"), "is not of the form 0-2047,3000"),
    ],
)
def test_a_division_that_is_none_is_refused(shards: tuple[str | None, ...], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        shard_map(clusters(*shards))
