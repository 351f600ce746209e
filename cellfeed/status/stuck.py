"""The parts of an instance that do not advance, with reason, time and remedy.

Made from its status alone: of offsets, heads and the reasons that workers report. A healthy shard
advances within a second, so that nothing here is a matter of load. Console, ``top``, ``doctor`` and
metrics all show this list.
"""

from __future__ import annotations

from cellfeed.status.instance_status import InstanceStatus
from cellfeed.status.stuck_care import stuck_care
from cellfeed.status.stuck_groups import stuck_groups
from cellfeed.status.stuck_part import Stuck
from cellfeed.status.stuck_servers import stuck_servers


def stuck(found: InstanceStatus, now_us: int) -> list[Stuck]:
    """Everything that stands still. ``now_us``: by the clock that stamps cells, microseconds since
    1970 UTC."""
    return [*stuck_servers(found, now_us), *stuck_groups(found, now_us), *stuck_care(found)]
