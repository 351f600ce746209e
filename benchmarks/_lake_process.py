"""One load of a topic into a lake's table: ``python -m benchmarks._lake_process BOOTSTRAP FORMAT
FOLDER`` prints rows, rows a second and the greatest memory as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from cellfeed.consumers.lake.loader import run_lake_loader
from cellfeed.consumers.lake.open_table import Place
from cellfeed.consumers.lake.progress import LakeProgress
from cellfeed.consumers.warehouse.kafka_records import end_offsets


def main() -> None:
    bootstrap, kind, folder = sys.argv[1:]
    place = Place(format="delta" if kind == "delta" else "iceberg", storage=Path(folder))
    begun: list[float] = []

    def note(progress: LakeProgress) -> None:
        if not begun and (progress.waiting_rows or progress.rows):
            begun.append(time.perf_counter())

    ends = end_offsets(bootstrap, "trips")
    started = time.perf_counter()
    progress = run_lake_loader(
        bootstrap, "trips", f"load-{folder}", place, threading.Event(), note, until_offsets=ends
    )
    took = time.perf_counter() - (begun[0] if begun else started)
    print(
        json.dumps(
            {
                "rows": progress.rows,
                "per_s": progress.rows / took,
                "files": progress.files,
                "commits": progress.commits,
                "memory_mib": _greatest_kib() / 1024,
            }
        )
    )


def _greatest_kib() -> int:
    """Greatest resident memory of this program. ``ru_maxrss`` has that of its parent as well."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
