"""cluster rejoin: a node returns as a minion, and no cell that it alone has is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from cellfeed.assembly.clusters import (
    cluster_servers,
)
from cellfeed.assembly.datastore import open_datastore
from cellfeed.cli.cluster import ClusterArgument, ConfigOption, app, checked_config
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import (
    JsonOption,
    console,
    print_result,
    progress_bar,
)
from cellfeed.store.backups.erasures import known_to_state
from cellfeed.store.backups.register_entries import NOT_DONE
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.clone import clone, is_half_copied
from cellfeed.store.clusters.operating.never_replicated import NeverReplicated
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.rejoin import come_back
from cellfeed.store.datastore import Datastore
from cellfeed.store.erasures import DONE, PREFIX
from cellfeed.store.errors import ProtectData, RowErased, StorageUnavailable

_EXTRA_SHOWN = 20


@app.command("rejoin")
def rejoin(
    cluster: ClusterArgument,
    node: Annotated[str, typer.Argument(help="The node that rejoins.")],
    put_again: Annotated[
        bool,
        typer.Option(
            "--put-again",
            help="Put again the cells that it never replicated, then make it a copy of the master.",
        ),
    ] = False,
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help=(
                "Make it a copy of the master, and discard its content (a new or replaced server)."
            ),
        ),
    ] = False,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Bring a node back as a minion: an old master, or an empty server in its place.

    One that holds cells or erasures that were never replicated is refused, and they are listed.
    When it has only leases or addresses beyond the master, and where a copy was cut off, it is made
    a copy of the master.
    """
    checked = checked_config(config, run_dir)
    servers = cluster_servers(checked, cluster)
    role, _ = cluster_role(servers)
    if copy or is_half_copied(servers, node):
        _copy(servers, node, as_json)
        return
    beyond = come_back(servers, node)
    if beyond is None:
        print_result(
            as_json, {"node": node, "follows": role.master}, f"{node} follows {role.master}"
        )
        return
    if beyond.nothing:
        _copy(servers, node, as_json, beyond)
        return
    extra = [*beyond.cells, *beyond.buffered]
    if not put_again:
        for row_key in beyond.erased[:_EXTRA_SHOWN]:
            console.print(
                f"never replicated: the erasure of {UUID(bytes=row_key)}", highlight=False
            )
        for cell in extra[:_EXTRA_SHOWN]:
            console.print(
                f"never replicated: {cell.row_key.hex()} {cell.column_name} {cell.ref_key},"
                f" {len(cell.body_json)} bytes",
                highlight=False,
            )
        raise ProtectData(
            f"{node} holds {beyond} that were never replicated; put them again and make it a copy"
            f" of {role.master} with --put-again"
        )
    with open_datastore(checked, Path()) as datastore:
        for row_key in beyond.erased:
            datastore.erase_row(UUID(bytes=row_key))
        erased = _erased_since(datastore, beyond)
        for row_key in sorted({cell.row_key for cell in extra} & erased):
            console.print(
                f"not put again: row {UUID(bytes=row_key)} was erased since", highlight=False
            )
        extra = [cell for cell in extra if cell.row_key not in erased]
        _put_again(datastore, extra)
    _copy(servers, node, as_json, beyond, put_again=len(extra))


def _copy(
    servers: ClusterServers,
    node: str,
    as_json: bool,
    listed: NeverReplicated | None = None,
    **fields: Any,
) -> None:
    with progress_bar() as bar:
        task = bar.add_task(f"copying to {node}", total=None)
        copied = clone(servers, node, lambda rows: bar.update(task, completed=rows), listed=listed)
    print_result(
        as_json,
        {"node": node, "rows_copied": copied, **fields},
        f"{node} is a copy of the master ({copied} rows) and follows it",
    )


def _erased_since(datastore: Datastore, beyond: NeverReplicated) -> set[bytes]:
    """Row keys of rows that were erased since the node left the history of its master. A put
    refuses them only until a trim has taken the log's cell of the erasure; the state table has each
    for ever."""
    entries = [(each.key, each.value) for at in (PREFIX, DONE) for each in datastore.state.list(at)]
    return {
        bytes.fromhex(each.row_key)
        for each in known_to_state(datastore.name, datastore.shards, entries)
        if each.added_id == NOT_DONE or each.added_id >= beyond.begins.get(each.shard, 0)
    }


def _put_again(datastore: Datastore, cells: list[NewCell]) -> None:
    results = datastore.put_new_cells(cells)
    refused = [
        result
        for result in results
        if result.outcome is Outcome.CONFLICT or isinstance(result.error, RowErased)
    ]
    failed = [result for result in results if not result.acknowledged and result not in refused]
    for each in refused:
        console.print(f"not put again: {each.error}", highlight=False)
    if failed:
        raise StorageUnavailable(
            f"{len(failed)} of {len(cells)} cells could not be put again; nothing on the node was"
            f" touched: {failed[0].error}"
        )
