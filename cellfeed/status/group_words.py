"""The words of people for a group: its kind, its name, and the commands that help."""

from __future__ import annotations

from cellfeed.bridge.groups.control import EXPORTS
from cellfeed.bridge.triggers.operate.lag import GroupLag
from cellfeed.store.indexes.version import INDEX_GROUPS


def named(group: str) -> tuple[str, str, str]:
    """Of a group the kind, the user's name, and the first word of its commands; empty for those of
    indexes, which nobody pauses."""
    if group.startswith(EXPORTS):
        return "export", group.removeprefix(EXPORTS), "export"
    if group.startswith(INDEX_GROUPS):
        return "index", group.removeprefix(INDEX_GROUPS).rpartition(".v")[0], ""
    return "trigger", group, "triggers"


def is_paused(because: str) -> bool:
    """Whether people have paused the group, or reset it at this moment."""
    return because.startswith(("paused by", "reset is under way"))


def remedy_of_wait(lag: GroupLag) -> str:
    """A pause ends by the command that resumes; a stop for parked cells by another one."""
    _, name, verb = named(lag.group)
    if not verb:
        return f"cellfeed index status {name}"
    if lag.waits_because.startswith("paused by"):
        return f"cellfeed {verb} resume {name}"
    if lag.waits_because.startswith("stopped:"):
        return f"cellfeed parked resume {lag.group}"
    return f"cellfeed {verb} lag {name}"
