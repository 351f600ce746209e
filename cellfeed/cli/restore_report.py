"""The report at the end of a restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from cellfeed.cli.output import console, print_json
from cellfeed.cli.restore_point import Chosen
from cellfeed.store.backups.manifest import Reader
from cellfeed.store.backups.restore_plan import Plan


def _point_as_json(chosen: Chosen) -> dict[str, object]:
    if chosen.point is None:
        return {}
    return {
        "at": chosen.point,
        "state_of": chosen.state_of.name,
        "ends": {str(log.shard): log.watermark for log in chosen.manifest.logs},
        "trimmed": {
            str(shard): {"from": first, "to": last}
            for shard, (first, last) in chosen.trimmed.items()
        },
    }


def print_restored(
    planned: Plan,
    chosen: Chosen,
    lost: Mapping[int, tuple[int, int]],
    back: Sequence[Reader],
    left: Sequence[bytes],
    as_json: bool,
) -> None:
    backup, epoch = planned.backup, planned.epoch
    erased = [str(UUID(bytes=row_key)) for row_key in planned.erased if row_key not in left]
    not_erased = [str(UUID(bytes=row_key)) for row_key in left]
    cells = sum(log.watermark - log.log_start for log in backup.manifest.logs)
    if as_json:
        gone = {str(shard): {"from": first, "to": last} for shard, (first, last) in lost.items()}
        fields = {"backup": backup.name, "ids": cells, "leader_epoch": epoch, "left_out": gone}
        print_json(
            {
                **fields,
                "set_back": [str(reader) for reader in back],
                "erased": erased,
                "not_erased": not_erased,
                **_point_as_json(chosen),
            }
        )
        return
    as_of = f" as of {chosen.point}, the state of {chosen.state_of.name}" if chosen.point else ""
    console.print(
        f"restored from {backup.name}{as_of}, {cells} ids, and opened in leader epoch {epoch}",
        highlight=False,
    )
    for shard, (first, last) in chosen.trimmed.items():
        console.print(
            f"shard {shard} is not as it was: a trim behind that moment took ids {first} to {last}"
            " before a backup had them",
            style="red",
            highlight=False,
            soft_wrap=True,
        )
    if erased:
        console.print(
            f"erased again, as the register of erasures says: {len(erased)} rows:"
            f" {', '.join(erased)}",
            highlight=False,
        )
    for row_key in not_erased:
        text = (
            "not erased, though the register of erasures has it: its cluster was opened by an"
            f" earlier run already: cellfeed erase {row_key}"
        )
        console.print(text, style="red", highlight=False, soft_wrap=True)
    for shard, (first, last) in lost.items():
        console.print(
            f"shard {shard}: ids {first} to {last} are nobody's; cells that had them are lost, and"
            f" the log says so at {last + 1}",
            highlight=False,
        )
    for reader in back:
        console.print(
            f"runs again from {reader.shard}:{reader.location}: {reader.name} (cells that it parked"
            " since the backup are not in it)",
            highlight=False,
        )
