"""The first cells of a column as its shards' logs have them: `cellfeed dictionary train` trains on
them."""

from __future__ import annotations

from typing import Final

from cellfeed.store.cells.body_codec import decode_body, is_erased
from cellfeed.store.dictionaries.training import (
    SAMPLE_BYTES_MAX,
    SAMPLES_WANTED,
    Sample,
    is_sampled,
)
from cellfeed.store.engines.contract.engine import Engine

_SCAN_CELLS: Final = 1_000


def sample_of_log(engine: Engine, column_name: str) -> list[Sample]:
    """At most ``SAMPLES_WANTED`` bodies, from the shards in turns; all that there are when the logs
    end before. Raises StorageUnavailable, DataDamaged."""
    samples: list[Sample] = []
    sample_bytes = 0
    locations = {shard: head.log_start for shard, head in engine.heads().items()}
    while locations:
        for shard, location in list(locations.items()):
            cells = engine.scan(shard, location, _SCAN_CELLS)
            if not cells:
                del locations[shard]
                continue
            locations[shard] = cells[-1].added_id + 1
            for cell in cells:
                if (
                    cell.column_name == column_name
                    and not is_erased(cell.body)
                    and is_sampled(body := decode_body(cell.body))
                ):
                    samples.append(Sample(cell.row_key, body))
                    sample_bytes += len(body)
                    if len(samples) >= SAMPLES_WANTED or sample_bytes >= SAMPLE_BYTES_MAX:
                        return samples
    return samples
