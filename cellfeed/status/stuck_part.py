"""One part of an instance that stands still."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cellfeed.status.causes import Cause

_SHARDS_NAMED_MAX: Final = 8


class Stuck(msgspec.Struct, frozen=True):
    """``kind``: ``process``, ``storage``, ``cluster``, ``coordination``, ``disk``,
    ``certificate``, ``trigger``, ``index``, ``export``, ``group``, ``topic``, ``erasure``,
    ``backup`` or ``check``. ``shards``: those of it that stand still; none where all of it does.
    ``since_us``: microseconds since 1970 UTC; 0 where nobody knows."""

    kind: str
    name: str
    cause: Cause
    reason: str
    remedy: str
    since_us: int = 0
    shards: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) or None for name in self.__struct_fields__}

    @property
    def where(self) -> str:
        """The kind, the name and the shards, for people."""
        shown = ", ".join(map(str, self.shards[:_SHARDS_NAMED_MAX]))
        more = len(self.shards) - _SHARDS_NAMED_MAX
        place = f" shard {shown}" if shown else ""
        return f"{self.kind} {self.name}{place}" + (f" and {more} more" if more > 0 else "")
