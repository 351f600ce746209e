"""A process that writes cells until it is killed or told to stop: python writer_process.py
DIRECTORY WRITER_NUMBER CELLS THREADS.

Prints ``begin <n>`` before and ``ack <n> <shard> <added_id>`` after each put; its parent then knows
which cells were acknowledged (and which may be there) when it was killed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from uuid import UUID, uuid5

from cellfeed.store.datastore import Datastore

NAMESPACE = UUID("8c1ff5a8-2b9b-4b55-9a3d-3c7e5a6f0d11")


def row_of(writer: int, number: int) -> UUID:
    return uuid5(NAMESPACE, f"{writer}-{number}")


def body_of(writer: int, number: int) -> dict[str, object]:
    return {"writer": writer, "number": number, "padding": "x" * (number % 50)}


def acknowledgements(output: str) -> tuple[set[int], dict[int, tuple[int, int]]]:
    """The puts that a writer began, and the places of those that were acknowledged."""
    begun: set[int] = set()
    acknowledged: dict[int, tuple[int, int]] = {}
    for line in output.splitlines():
        match line.split():
            case ["begin", number]:
                begun.add(int(number))
            case ["ack", number, shard, added_id]:
                acknowledged[int(number)] = (int(shard), int(added_id))
    return begun, acknowledged


def main() -> None:
    directory, writer, cells, threads = (
        Path(sys.argv[1]),
        int(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    store = Datastore.open_embedded(directory, shards=4)
    out = threading.Lock()

    def say(text: str) -> None:
        with out:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def write(thread: int) -> None:
        for number in range(thread, cells, threads):
            say(f"begin {number}")
            result = store.put_cell(row_of(writer, number), "BASE", 1, body_of(writer, number))
            say(f"ack {number} {result.shard} {result.added_id}")

    workers = [threading.Thread(target=write, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    store.close()


if __name__ == "__main__":
    main()
