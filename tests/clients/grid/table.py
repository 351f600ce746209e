"""The table of the grid in the guide for owners of consumers: written by one run, and compared with
the results of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.clients.grid.clients import CLIENTS
from tests.clients.grid.scenarios import SCENARIOS, Outcome

GUIDE: Final = Path(__file__).parents[3] / "docs" / "kafka-consumers.md"
BEGIN: Final = "<!-- written by `make grid` -->\n"
END: Final = "<!-- end of what `make grid` writes -->\n"


def row(client: str, outcomes: Mapping[str, Outcome]) -> str:
    cells = [client, CLIENTS[client].version, *(outcomes[scenario].cell for scenario in SCENARIOS)]
    return f"| {' | '.join(cells)} |"


def rows_in_guide() -> list[str]:
    """Without the two lines of the head."""
    _, found, rest = GUIDE.read_text().partition(BEGIN)
    assert found, f"{GUIDE} has no line {BEGIN!r}"
    return rest.partition(END)[0].splitlines()[2:]


def write(rows: Sequence[str]) -> None:
    before, begin, rest = GUIDE.read_text().partition(BEGIN)
    head = f"| client | version | {' | '.join(SCENARIOS)} |\n|{' --- |' * (2 + len(SCENARIOS))}\n"
    _, end, after = rest.partition(END)
    GUIDE.write_text(before + begin + head + "".join(f"{each}\n" for each in rows) + end + after)


def of_client(rows: Sequence[str], client: str) -> str | None:
    return next((each for each in rows if each.startswith(f"| {client} |")), None)
