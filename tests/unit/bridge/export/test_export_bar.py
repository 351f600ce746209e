"""The bar of a first export: it counts the work of this process, comes to its end, and ends an
exporter that is refused everything."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field
from typing import cast

from rich.console import Console
from rich.progress import Progress

from cellfeed.bridge.export.export_group import ExportGroup
from cellfeed.bridge.groups.progress_records import Progress as Place
from cellfeed.cli.export import _Looks
from cellfeed.store.errors import ProtectData


@dataclass
class Named:
    name: str


@dataclass
class Group:
    """The parts of a group that are looked at. ``locations`` by shard that the process has."""

    locations: dict[int, int]
    export: Named = field(default_factory=lambda: Named("all"))
    refusal: ProtectData | None = None

    def progress(self) -> dict[int, Place]:
        return {shard: Place(location=location) for shard, location in self.locations.items()}


def looked(looks: _Looks, *groups: Group) -> None:
    looks.look([cast("ExportGroup", group) for group in groups])


def is_shown(bar: Progress) -> bool:
    return bar.live.is_started


def test_the_bar_counts_cells_exported_before_for_the_shards_of_this_process() -> None:
    bar = Progress(console=Console(file=io.StringIO(), force_terminal=True), auto_refresh=False)
    looks = _Looks(threading.Event(), bar, {0: 100, 1: 50, 2: 1_000})
    looked(looks, Group({}))
    assert bar.tasks[0].total == 0
    looked(looks, Group({0: 100}))
    assert bar.live.is_started, "more shards may come"
    looked(looks, Group({0: 120, 1: 10}))  # another process has shard 2; cells come meanwhile
    assert (bar.tasks[0].completed, bar.tasks[0].total) == (110, 150)
    looked(looks, Group({0: 130, 1: 50}), Group({1: 20}, Named("cards")))
    assert (bar.tasks[0].completed, bar.tasks[0].total) == (170, 200)
    looked(looks, Group({0: 130, 1: 60}), Group({1: 50}, Named("cards")))
    assert not is_shown(bar)
    looked(
        looks, Group({0: 130, 1: 60, 2: 5})
    )  # of an exporter that has ended; the first export is over here
    assert not is_shown(bar)
    looks.close()


def test_an_exporter_that_is_refused_everything_ends() -> None:
    stopping = threading.Event()
    looks = _Looks(stopping, Progress(console=Console(file=io.StringIO()), disable=True), {0: 100})
    refusal = ProtectData("the topic is compacted")
    looked(looks, Group({}, refusal=refusal), Group({0: 5}, Named("cards")))
    assert not stopping.is_set()
    looked(looks, Group({}, refusal=refusal), Group({}, Named("cards"), refusal))
    assert stopping.is_set()
    assert looks.refused is refusal
    looks.close()
