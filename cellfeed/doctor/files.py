"""The rights to an instance's files: passwords and keys are their owner's alone, and the account
that runs the processes can write the data."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cellfeed.config.model import Config
from cellfeed.doctor.findings import Finding, Instance, Level

_OTHERS_READ: Final = stat.S_IROTH
_OTHERS_WRITE: Final = stat.S_IWOTH


def examine_files(instance: Instance) -> Iterator[Finding]:
    """Looks at the configuration, the folders of data, and the keys of listeners."""
    directory, config = instance.directory, instance.config
    yield configuration(directory.config, has_passwords=_has_passwords(config))
    folders = {"run directory": directory.path}
    if not config.datastore.clusters:
        place = directory.inside(config.datastore.directory) / config.datastore.name
        folders["store"] = place
    for subject, folder in folders.items():
        yield from folder_of_data(subject, folder)
    for gateway in config.gateways:
        for listener in gateway.listeners:
            if listener.key is not None:
                yield key(f"{gateway.name}, listener {listener.name}", Path(listener.key))


def configuration(path: Path, *, has_passwords: bool) -> Finding:
    """The file of an instance's configuration."""
    if not has_passwords:
        return Finding("permissions", str(path), Level.WELL, "holds no password")
    if path.stat().st_mode & _OTHERS_READ:
        return Finding(
            "permissions",
            str(path),
            Level.PROBLEM,
            "holds passwords, and every account of this host may read it",
            f"chmod o-rwx {path}, and change the passwords that others may have read",
        )
    return Finding(
        "permissions", str(path), Level.WELL, "holds passwords, and others cannot read it"
    )


def folder_of_data(subject: str, folder: Path) -> Iterator[Finding]:
    """A folder and the files directly in it."""
    if not folder.exists():
        return
    name = f"{subject} ({folder})"
    listed = [folder, *sorted(folder.iterdir())]
    writable = [each for each in listed if _mode(each) & _OTHERS_WRITE]
    if writable:
        yield Finding(
            "permissions",
            name,
            Level.PROBLEM,
            f"every account of this host may write {_names(folder, writable)}",
            f"chmod -R o-w {folder}",
        )
    refused = [each for each in listed if not os.access(each, os.W_OK)]
    if refused:
        yield Finding(
            "permissions",
            name,
            Level.PROBLEM,
            f"this account cannot write {_names(folder, refused)}",
            "run cellfeed as the account that owns the files, or give it the files",
        )
    owners = {each.lstat().st_uid for each in listed}
    if len(owners) > 1:
        yield Finding(
            "permissions",
            name,
            Level.ADVICE,
            f"its files belong to {len(owners)} accounts, so a process of one of them may fail",
            f"chown -R the account that runs cellfeed {folder}",
        )
    if not writable and not refused and len(owners) == 1:
        yield Finding("permissions", name, Level.WELL, "one account owns and writes it")


def key(subject: str, path: Path) -> Finding:
    """A private key."""
    name = f"{subject}: {path}"
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return Finding(
            "permissions", name, Level.PROBLEM, f"no key there: {error.strerror}", "put it there"
        )
    if mode & (_OTHERS_READ | _OTHERS_WRITE):
        return Finding(
            "permissions",
            name,
            Level.PROBLEM,
            "every account of this host may read this private key",
            f"chmod o-rwx {path}, and replace the key",
        )
    return Finding("permissions", name, Level.WELL, "others cannot read it")


def _has_passwords(config: Config) -> bool:
    addresses = [node.url for cluster in config.datastore.clusters for node in cluster.nodes]
    addresses.append(config.coordination)
    return any(urlsplit(address).password for address in addresses) or any(
        each.client for each in config.exports
    )


def _mode(path: Path) -> int:
    found = path.lstat().st_mode
    return 0 if stat.S_ISLNK(found) else found  # a link's own bits say nothing


def _names(folder: Path, paths: list[Path]) -> str:
    shown = ", ".join(str(each.relative_to(folder.parent)) for each in paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
