"""The audit logs of an instance."""

from __future__ import annotations

import getpass
from pathlib import Path

from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.security.audit import AuditLog

COMMANDS = "commands"


def audit_log(config: Config, run_dir: Path, process: str) -> AuditLog | None:
    """That of a process; None where the configuration keeps none. Raises StorageUnavailable where
    its file cannot be made."""
    if config.audit is None:
        return None
    path = RunDir(run_dir).inside(config.audit.directory) / f"{process}.jsonl"
    try:
        return AuditLog(path, process)
    except OSError as error:
        raise StorageUnavailable(
            f"the audit log {path} cannot be written: {error.strerror}"
        ) from error


def audit_command(config: Config, run_dir: Path, did: str, to: str) -> None:
    """Writes the act of a command before it is done, by the user of this machine. Raises
    StorageUnavailable where that is impossible: then nothing must be done."""
    log = audit_log(config, run_dir, COMMANDS)
    if log is None:
        return
    try:
        log.before(getpass.getuser(), did, to, how="command")
    finally:
        log.close()
