"""A datastore's name that is mistyped or left out makes no fresh store beside the one that is
meant. Programs would write into it."""

from __future__ import annotations

from pathlib import Path

from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.store.arguments import check_datastore_name
from cellfeed.store.errors import InvalidRequest, ProtectData


def refuse_fresh_store_beside(directory: RunDir, config: Config) -> None:
    """Raises ProtectData where the embedded datastore of the configuration is not there, and its
    directory has others."""
    parent = directory.inside(config.datastore.directory)
    name = config.datastore.name
    if config.datastore.clusters or (parent / name).exists() or not parent.is_dir():
        return
    from cellfeed.store.engines.sqlite.store_files import CELLS_FILE  # up opens no store otherwise

    others = sorted(
        path.parent.name for path in parent.glob(f"*/{CELLS_FILE}") if _is_store(path.parent)
    )
    if others:
        raise ProtectData(
            f"{parent} has datastore {', '.join(others)}, and none named {name}: name the one that"
            f" is meant with --datastore {others[0]} or in the configuration; --datastore {name}"
            " makes another one beside it"
        )


def _is_store(folder: Path) -> bool:
    try:
        check_datastore_name(folder.name)
    except InvalidRequest:
        return False  # a restore has put this aside
    return True
