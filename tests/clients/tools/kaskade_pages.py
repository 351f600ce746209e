"""Uses Kaskade, a terminal interface, as a person would:
``kaskade_pages.py BOOTSTRAP TOPIC PARTITION OFFSET`` looks at the list of topics and opens the page
of one; then it reads its records from an offset on. Writes one JSON object: the rows of every table
that was shown, by the table's name."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from kaskade.admin import DescribeTopicScreen, KaskadeAdmin
from kaskade.consumer import KaskadeConsumer
from kaskade.deserializers import Deserialization
from kaskade.models import PartitionSelection
from textual.pilot import Pilot
from textual.widgets import DataTable

SIZE = (160, 50)
SHOWN_TIMEOUT_S = 60.0
UNKNOWN_YET = "…"

Tables = dict[str, list[list[str]]]


async def main(bootstrap: str, topic: str, partition: str, offset: str) -> None:
    connection = {"bootstrap.servers": bootstrap}
    shown = await pages(KaskadeAdmin(connection, refresh_interval=0), topic)
    selected = (PartitionSelection(int(partition), int(offset)),)
    shown |= await records(
        KaskadeConsumer(
            topic,
            connection,
            {},
            {},
            {},
            Deserialization.STRING,
            Deserialization.STRING,
            partitions=selected,
        )
    )
    print(json.dumps(shown))


async def pages(app: KaskadeAdmin, topic: str) -> Tables:
    async with app.run_test(size=SIZE) as pilot:
        table = app.query_one("#topics-table", DataTable)

        def is_complete() -> bool:
            return (
                table.row_count > 0
                and not table.loading
                and not any(UNKNOWN_YET in cell for row in rows(table) for cell in row)
            )

        await until(pilot, is_complete, "the list of topics")
        shown = {"topics": rows(table)}
        table.focus()
        for _ in range([row[0] for row in shown["topics"]].index(topic)):
            await pilot.press("down")
        await pilot.press("d")
        await until(
            pilot, lambda: isinstance(app.screen, DescribeTopicScreen), "the page of a topic"
        )
        return shown | {str(each.id): rows(each) for each in app.screen.query(DataTable)}


async def records(app: KaskadeConsumer) -> Tables:
    async with app.run_test(size=SIZE) as pilot:
        table = app.query_one("#records-table", DataTable)
        await until(pilot, lambda: table.row_count > 0 and not table.loading, "records")
        return {"records": rows(table)}


async def until(pilot: Pilot[Any], is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + SHOWN_TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"{what}: not within {SHOWN_TIMEOUT_S} s"
        await pilot.pause(0.05)


def rows(table: DataTable[Any]) -> list[list[str]]:
    return [[str(cell) for cell in table.get_row_at(number)] for number in range(table.row_count)]


asyncio.run(main(*sys.argv[1:]))
