"""The configuration file of an instance: read, checked as a whole, and written.

YAML, checked strictly. An empty file, or none, is an embedded store with one HTTP worker and one
gateway.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import yaml

from cellfeed.config.checks import check_entries
from cellfeed.config.model import Config
from cellfeed.kinds.known import process_names
from cellfeed.store.errors import InvalidRequest


def load_config(path: Path | None) -> Config:
    """The configuration of a file, or the defaults. Raises InvalidRequest (what, where),
    ProtectData for an address beyond loopback."""
    if path is None:
        return check_config(Config())
    try:
        raw = yaml.safe_load(path.read_bytes())
        return check_config(msgspec.convert({} if raw is None else raw, Config))
    except OSError as error:
        raise InvalidRequest(f"config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidRequest(
            f"config file {path} is not YAML: {' '.join(str(error).split())}"
        ) from error
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"config file {path}: {error}") from error


def check_config(config: Config) -> Config:
    """Returns the configuration if its entries are well and no two processes have one name. Raises
    InvalidRequest, ProtectData."""
    check_entries(config)
    counts = Counter(name for name, _ in process_names(config))
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise InvalidRequest(f"config: the process name {repeated[0]!r} is given twice")
    return config


def write_config(config: Config, path: Path) -> None:
    """Writes the configuration in force, defaults included."""
    path.touch(mode=0o600)  # it may hold passwords
    path.write_text(yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False))
