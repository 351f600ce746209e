"""restore --row-key, --shard: cells of a backup go into a store that has cells."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import typer

from cellfeed.assembly.datastore import open_datastore
from cellfeed.cli.output import console, errors, print_json, progress_bar
from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.part_history import check_history
from cellfeed.store.backups.part_report import Report
from cellfeed.store.backups.partial import Part, restore_part
from cellfeed.store.cells.cell import check_row_key
from cellfeed.store.cells.sharding import check_shard, shard_of
from cellfeed.store.errors import NotFound


def put_part(
    run_dir: RunDir,
    config: Config,
    chain: Sequence[Backup],
    part: Part,
    erased: set[bytes],
    from_history: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Opens the datastore as any other of its processes does, and puts the cells it lacks. Exits
    with 1 where it does not have each cell as the backup has it."""
    place = run_dir.inside(config.datastore.directory) / config.datastore.name
    if not config.datastore.clusters and not place.exists():
        raise NotFound(
            f"nothing restored: there is no datastore in {place}. A part is put into one that is"
            " there; without --row-key and --shard all of the backup is restored"
        )
    with open_datastore(config, run_dir.path) as store, progress_bar() as bar:
        check_history(store.history(), chain[-1], from_history)
        task = bar.add_task(
            "comparing (cells)" if dry_run else "comparing and putting (cells)", total=None
        )
        report = restore_part(
            store,
            chain,
            part,
            erased,
            dry_run=dry_run,
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if part.row_key is not None and not report.cells and not report.not_reached:
        raise NotFound(f"backup {chain[-1].name} has no cell of row {_shown(part)}")
    _report(chain[-1], part, report, dry_run, as_json)
    if not report.complete:
        raise typer.Exit(1)


def part_of(row_key: str | None, shard: int | None, shards: int) -> Part | None:
    """The part that the options name; None for all of a backup. Raises InvalidRowKey,
    UnknownShard."""
    if row_key is not None:
        key = check_row_key(row_key)
        return Part(shard_of(key, shards), key)
    return None if shard is None else Part(check_shard(shard, shards))


def _shown(part: Part) -> str | None:
    return None if part.row_key is None else str(UUID(bytes=part.row_key))


def _report(backup: Backup, part: Part, report: Report, dry_run: bool, as_json: bool) -> None:
    counts = report.counts()
    if as_json:
        problems = [
            {
                "row_key": str(UUID(bytes=each.triple.row_key)),
                "column_name": each.triple.column_name,
                "ref_key": each.triple.ref_key,
                **each.error.as_json(),
            }
            for each in report.problems
        ]
        of = {
            "backup": backup.name,
            "shard": part.shard,
            "row_key": _shown(part),
            "dry_run": dry_run,
        }
        print_json({**of, **counts, "complete": report.complete, "problems": problems})
        return
    for problem in report.problems:
        errors.print(str(problem), style="red", highlight=False)
    if (left := report.other + report.failed + report.unknown - len(report.problems)) > 0:
        errors.print(f"and {left} more, which are not named", style="red", highlight=False)
    if report.not_reached:
        errors.print(
            f"the store did not answer: {report.not_reached} cells of the backup's log were not"
            " looked at. Run it again",
            style="red",
            highlight=False,
        )
    words = {
        "would put" if dry_run else "put": report.stored,
        "there already": report.same,
        "there with another body": report.other,
        "of erased rows": report.erased,
        "the log's own": report.log_own,
        "buffered": report.buffered,
        "failed": report.failed,
        "of unknown outcome": report.unknown,
    }
    console.print(
        f"{report.cells} cells of {backup.name}: "
        + ", ".join(
            f"{count} {word}" for word, count in words.items() if count or word.endswith("put")
        ),
        highlight=False,
    )
