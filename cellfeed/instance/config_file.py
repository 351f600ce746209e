"""The configuration file of an instance: read, checked as a whole, and written.

YAML, checked strictly. An empty file, or none, is an embedded store with one HTTP worker and one
gateway.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import yaml

from cellfeed.config.checks import check_entries
from cellfeed.config.model import Config
from cellfeed.config.unknown_keys import unknown_keys
from cellfeed.kinds.known import process_names
from cellfeed.store.backups.synced import sync_folder
from cellfeed.store.errors import InvalidRequest


def load_config(path: Path | None) -> Config:
    """The configuration of a file, or the defaults. Raises InvalidRequest (the fault and its path),
    ProtectData for an address beyond loopback."""
    if path is None:
        return check_config(Config())
    raw: object = None
    try:
        raw = yaml.load(path.read_bytes(), _OnceEach)  # noqa: S506 (a SafeLoader)
        return check_config(msgspec.convert({} if raw is None else raw, Config))
    except OSError as error:
        raise InvalidRequest(f"config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidRequest(
            f"config file {path} is not YAML: {' '.join(str(error).split())}"
        ) from error
    except msgspec.ValidationError as error:
        unknown = unknown_keys(raw)
        raise InvalidRequest(f"config file {path}: {'. '.join(unknown) or error}") from error


class _OnceEach(yaml.SafeLoader):
    """YAML whose mappings have each key once: of two, PyYAML would take the last silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def check_config(config: Config) -> Config:
    """Returns the configuration if its entries are well and no two processes have one name. Raises
    InvalidRequest, ProtectData."""
    check_entries(config)
    counts = Counter(name for name, _ in process_names(config))
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise InvalidRequest(f"config: the process name {repeated[0]!r} is given twice")
    return config


def write_config(config: Config, path: Path) -> None:
    """Writes the configuration in force, defaults included. The file is whole, or as it was before:
    half of one is another configuration, and an empty one is the built-in one."""
    target = path.resolve()
    staged = target.with_name(f".{target.name}.staged")
    staged.unlink(missing_ok=True)
    # It may hold passwords: others read it only where somebody has allowed it.
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
    staged.touch(mode=0o600)
    with staged.open("w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False))
        file.flush()
        os.fsync(file.fileno())
    staged.replace(target)
    sync_folder(target.parent)
