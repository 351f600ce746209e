"""export run|list|lag: exporters on this host, and how far every export is."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.groups.control import EXPORTS
from cellfeed.bridge.triggers.operate.lag import GroupLag, LagReader
from cellfeed.cli.group_control import lag_cells, print_lag, shard_as_json
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, opened
from cellfeed.cli.output import JsonOption, console, errors, print_json, progress_bar
from cellfeed.config.model import Config
from cellfeed.status.instance_groups import summary
from cellfeed.store.errors import CellfeedError, NotFound

if TYPE_CHECKING:
    from cellfeed.bridge.export.export_group import ExportGroup
app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Exports: the log in a Kafka cluster, exactly once. Run exporters, see how far each is and"
        " why, compare."
    ),
)

NameArgument = Annotated[str, typer.Argument(help="The export, as the configuration names it.")]


@app.command()
def run(
    name: Annotated[
        str | None,
        typer.Argument(help="One export of the configuration; all of them when left out."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help=(
                "Compare partitions and shards while exporting; a difference ends it with exit"
                " code 1."
            ),
        ),
    ] = False,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Export until Ctrl-C or SIGTERM, which end it after the transactions under way.

    Any number of these run at once, on any number of hosts, and divide the shards between them. A
    topic that cannot be exported to is refused with a remedy (exit code 3).
    """
    # Start-up: the other verbs of exports produce no records.
    from cellfeed.bridge.export.watching import Watching
    from cellfeed.bridge.export.worker import run_exporter

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: stopping.set())
    with opened(run_dir, config) as (checked, datastore, coordinator):
        exports = chosen(checked, name)
        watching = Watching(exports, datastore, stopping) if verify else None
        looks = _Looks(
            stopping,
            progress_bar(),
            {shard: head.watermark for shard, head in datastore.heads().items()},
        )
        try:
            run_exporter(
                exports,
                datastore,
                coordinator,
                f"export-{socket.gethostname()}-{os.getpid()}",
                stopping,
                on_look=looks.look,
            )
        finally:
            looks.close()
            found = watching.close() if watching is not None else None
    if looks.refused is not None:
        raise looks.refused
    if found is not None:
        raise found


class _Looks:
    """Shows an exporter's progress at each look, and ends it once every export is refused."""

    def __init__(self, stopping: threading.Event, bar: Progress, ends: Mapping[int, int]) -> None:
        self.refused: CellfeedError | None = None
        self._stopping = stopping
        self._bar = bar
        self._ends = ends
        self._owned: set[tuple[str, int]] = set()
        self._done = False
        self._task = bar.add_task("exporting", total=None)
        self._bar.start()

    def look(self, groups: Sequence[ExportGroup]) -> None:
        """Called by the exporter. The bar counts the cells that were there when it began, of the
        shards that this process has: others have theirs."""
        refusals = [group.refusal for group in groups]
        if all(refusals):
            self.refused = refusals[0]
            self._stopping.set()
        if self._done:
            return
        owned = {
            (group.export.name, shard): (each.location, self._ends[shard])
            for group in groups
            for shard, each in group.progress().items()
        }
        completed, total = (
            sum(min(location, end) for location, end in owned.values()),
            sum(end for _, end in owned.values()),
        )
        self._bar.update(self._task, completed=completed, total=total)
        if (
            owned and completed >= total and set(owned) == self._owned
        ):  # no further shards have come since the last look
            self._done = True
            self._bar.stop()
        self._owned = set(owned)

    def close(self) -> None:
        self._bar.stop()


@app.command("list")
def list_exports(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """List every export that is configured or has ever run: its topic, its exporters, how far it
    is behind, and why it waits."""
    with opened(run_dir, config) as (checked, datastore, coordinator):
        reader = LagReader(datastore, coordinator)
        lags = {lag.group.removeprefix(EXPORTS): lag for lag in map(reader.read, reader.exports())}
        topics = {export.name: export.topic_of(datastore.name) for export in checked.exports}
    names = sorted({*lags, *topics})
    if as_json:
        for name in names:
            print_json(
                {
                    "export": name,
                    "topic": topics.get(name),
                    **(_summary(lags[name]) if name in lags else {"begun": False}),
                }
            )
        return
    table = Table(
        "export", "topic", "exporters", "cells behind", "seconds behind", "parked", "", box=None
    )
    for name in names:
        row = (
            lag_cells(lags[name])
            if name in lags
            else ("0", "", "", "", f"has never begun: cellfeed export run {name}")
        )
        table.add_row(name, topics.get(name, "not configured any more"), *row)
    console.print(table if names else "no export is configured")


@app.command()
def lag(
    name: NameArgument,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show how far an export is behind, shard by shard: cells, seconds, when it last got on, and
    why it is where it is."""
    with opened(run_dir, config) as (_, datastore, coordinator):
        reader = LagReader(datastore, coordinator)
        known = reader.exports()
        if EXPORTS + name not in known:
            raise NotFound(
                f"no export {name!r} has ever run here; there are"
                f" {', '.join(each.removeprefix(EXPORTS) for each in known) or 'none'}"
            )
        found = reader.read(EXPORTS + name)
    if as_json:
        print_json(
            {
                "export": name,
                **_summary(found),
                "shards": [shard_as_json(each) for each in found.shards],
            }
        )
        return
    print_lag(name, found, place="next cell", worker="exporter")
    for trouble in filter(None, (found.waits_because, found.away_because)):
        errors.print(f"{name} {trouble}", style="red", highlight=False)


def chosen(config: Config, name: str | None) -> list[Export]:
    """The configured exports, or the one of that name. Raises NotFound."""
    found = [export for export in config.exports if name in (None, export.name)]
    if not found:
        there = ", ".join(export.name for export in config.exports) or "none"
        raise NotFound(
            f"the configuration has no export {name!r}; it has {there}"
            if name
            else "the configuration has no exports: name some under exports:"
        )
    return found


def _summary(found: GroupLag) -> dict[str, object]:
    said = summary(found)
    return {
        key: said[key]
        for key in (
            "cells_behind",
            "seconds_behind",
            "parked",
            "workers",
            "shards_without_worker",
            "waits_because",
            "takes_nothing",
            "away_because",
        )
    }
