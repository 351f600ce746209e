"""The whole examination. Each part is looked at by itself: an error in one hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from cellfeed.config.model import Config
from cellfeed.doctor.dictionaries import examine_dictionaries
from cellfeed.doctor.disks import examine_disks
from cellfeed.doctor.files import examine_files
from cellfeed.doctor.findings import Finding, Instance, Level
from cellfeed.doctor.machine import examine_machine
from cellfeed.doctor.progress import examine_answers, examine_progress
from cellfeed.doctor.servers import examine_servers
from cellfeed.kinds.known import process_names
from cellfeed.run_dir import RunDir
from cellfeed.status.certificates import certificate_files
from cellfeed.status.instance_status import InstanceStatus, read_status
from cellfeed.store.errors import CellfeedError


def _certificates(instance: Instance) -> Iterator[Finding]:
    if certificate_files(instance.config):
        # Start-up: most instances have no listener with TLS, and the library takes a while to load.
        from cellfeed.doctor.certificates import examine_certificates

        yield from examine_certificates(instance)


def _wakeups(instance: Instance) -> Iterator[Finding]:
    config = instance.config
    if config.wakeups is not None or config.datastore.clusters:
        # Start-up: an embedded datastore has no other hosts.
        from cellfeed.doctor.wakeups import examine_wakeups

        yield from examine_wakeups(instance)


_PARTS: Final[tuple[tuple[str, Callable[[Instance], Iterator[Finding]]], ...]] = (
    ("host", examine_machine),
    ("disk", examine_disks),
    ("permissions", examine_files),
    ("certificates", _certificates),
    ("servers", examine_servers),
    ("dictionaries", examine_dictionaries),
    ("wake-ups", _wakeups),
    ("answers", examine_answers),
    ("progress", examine_progress),
)


def examine(directory: RunDir, config: Config) -> Iterator[Finding]:
    """Looks at everything, and yields each finding at once."""
    instance = Instance(directory, config, _status(directory, config))
    for area, part in _PARTS:
        try:
            yield from part(instance)
        except (CellfeedError, OSError) as error:
            yield Finding(area, "all of it", Level.UNKNOWN, f"not looked at: {error}", "mend that")


def _status(directory: RunDir, config: Config) -> InstanceStatus:
    try:
        return read_status(directory, config, dict(process_names(config)))
    except CellfeedError as error:
        return InstanceStatus([], [], storage_away=str(error))
