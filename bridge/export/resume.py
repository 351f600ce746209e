"""Where the export of a shard continues, from the end of its partition: a pure decision.

The partition is believed, nothing else. The offset that was saved after an earlier commit only says
which cells *behind* the partition's last record were looked at and have no record: the view leaves
them out, or they are parked. It counts when it was saved together with that very record.

    the partition's last record    saved                            then
    added_id *t*                   saved when *t* was the last      at the saved offset
    added_id *t*                   anything else, or nothing        at *t* + 1; the saved offset is
                                                                    mended
    *t* at or beyond the           (any)                            refused: another log is in there
    end of the shard's log
    none, never was one            nothing, or saved when there     at the saved offset, or at the
                                   was none                         start
    none                           saved when there was a record    refused, or begun again: the
                                                                    exported records are gone
    none, records were deleted     (any)                            refused, or begun again

Cells between there and the start of the log were trimmed before they were exported. The export is
refused, or continues without them where the configuration says so.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

NONE_EXPORTED: Final = -1
_METADATA: Final = re.compile(r"exported=(-1|\d{1,16})")


class Tail(NamedTuple):
    """The committed records at a partition's end. ``added_id`` of the last one; None: no record.
    ``start`` and ``end``: Kafka offsets that there are. ``foreign``: the last record is none of an
    export."""

    added_id: int | None
    start: int
    end: int
    foreign: bool = False


class Saved(NamedTuple):
    """The group's offset: the next cell, and the last record's added_id at the time (NONE_EXPORTED;
    None where the offset does not say, set by hand)."""

    location: int
    exported: int | None


class Resume(NamedTuple):
    """``differs``: how the saved offset disagreed with the partition; empty when it did not."""

    location: int
    exported: int
    differs: str = ""


class Refusal(NamedTuple):
    because: str


def metadata_of(exported: int) -> str:
    """The metadata saved beside an offset."""
    return f"exported={exported}"


def exported_of(metadata: str) -> int | None:
    """See :class:`Saved`."""
    found = _METADATA.fullmatch(metadata)
    return int(found[1]) if found else None


def decide(
    tail: Tail,
    saved: Saved | None,
    *,
    start: int,
    log_end: int,
    starts_over: bool,
    log_start: int = 0,
    skips_trimmed: bool = False,
) -> Resume | Refusal:
    """See the module. ``start``: where the export begins; ``log_end``: no id at or above it has
    been given out; ``starts_over``, ``skips_trimmed``: as configured."""
    found = _by_the_partition(tail, saved, start=start, log_end=log_end, starts_over=starts_over)
    if isinstance(found, Refusal) or found.location >= log_start:
        return found
    trimmed = f"cells {found.location} to {log_start - 1} were trimmed before they were exported"
    if not skips_trimmed:
        return Refusal(f"{trimmed}; with `on_trimmed: skip` the export continues without them")
    return Resume(
        log_start,
        found.exported,
        "; ".join(
            filter(None, (found.differs, f"{trimmed}, it continues without them, as configured"))
        ),
    )


def _by_the_partition(
    tail: Tail, saved: Saved | None, *, start: int, log_end: int, starts_over: bool
) -> Resume | Refusal:
    if tail.foreign:
        return Refusal(
            "the last record of the partition has no header added_id: something else writes into"
            " this topic; give the export a topic of its own"
        )
    if tail.added_id is not None:
        return _behind(tail.added_id, saved, log_end)
    if tail.start > 0:
        gone = f"its records below offset {tail.start} were deleted, the last of them among them"
    elif (
        saved is None
        or saved.exported == NONE_EXPORTED
        or (saved.exported is None and saved.location <= start)
    ):
        location = start if saved is None else max(start, saved.location)
        return (
            Refusal(_beyond(location, log_end))
            if location > log_end
            else Resume(location, NONE_EXPORTED)
        )
    else:
        gone = f"it is empty, though cells up to {saved.location - 1} were exported"
    if not starts_over:
        return Refusal(
            f"the partition has lost its end: {gone}; with `on_lost_topic: start_over` it is begun"
            f" again at {start}"
        )
    return Resume(start, NONE_EXPORTED, f"{gone}: begun again at {start}, as configured")


def _behind(added_id: int, saved: Saved | None, log_end: int) -> Resume | Refusal:
    if added_id >= log_end:
        return Refusal(_beyond(added_id, log_end))
    following = added_id + 1
    if saved is None:
        return Resume(
            following, added_id, f"nothing was saved, the partition ends with cell {added_id}"
        )
    if saved.exported == added_id and following <= saved.location <= log_end:
        return Resume(saved.location, added_id)
    if saved.exported is None and saved.location == following:
        return Resume(following, added_id)
    return Resume(
        following, added_id, f"{saved.location} was saved, the partition ends with cell {added_id}"
    )


def _beyond(added_id: int, log_end: int) -> str:
    return (
        f"the partition holds cell {added_id}, the shard's log ends at {log_end}: it is the export"
        " of another log, or the log has lost cells"
    )
