"""The questions to every client of the grid, each once in a run, and the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from cellfeed.bridge.coordination.open import IN_STORE, open_coordinator
from cellfeed.store.datastore import Datastore
from tests.clients.grid import gateway_death
from tests.clients.grid.builds import Unavailable
from tests.clients.grid.clients import CLIENTS, Client
from tests.clients.grid.running_client import Record, RunningClient
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS, Received

_NO_COORDINATOR: Final = "Failed to find group coordinator"
"""The words of kafkajs for "not authorized" where it looks for a coordinator of transactions."""

TOPIC: Final = "trips.BASE"
"""In JSON, so that a driver needs no decoder: text is compared."""

FIRST_PART: Final = 1_500
"""The records that a member reads before it is restarted."""

NOT_OFFERED: Final = "–"
"""The cell of a scenario that a client has no call for."""


@dataclass(frozen=True)
class Outcome:
    """``cell``: how it stands in the table. ``wrong`` is empty when all was as it must be."""

    cell: str
    wrong: Sequence[str] = ()


@dataclass
class Grid:
    """Runs a scenario when it is asked for the first time. ``expected``: the records of the topic
    of ``gateway``, which is over ``store``."""

    store: Path
    gateway: GatewayProcess
    expected: Sequence[Received]
    directory: Path
    _outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    _deaths: Mapping[str, list[str]] | None = None

    def outcome(self, client: str, scenario: str) -> Outcome:
        """Raises Unavailable where the client cannot be had on this machine."""
        key = (client, scenario)
        if key not in self._outcomes:
            CLIENTS[client].command("group", "", "", "", "0")
            self._outcomes[key] = SCENARIOS[scenario](self, CLIENTS[client])
        return self._outcomes[key]

    def by_assignment(self, client: Client) -> Outcome:
        """Reads every partition from its start without a group."""
        if "assign" not in client.modes:
            return Outcome(NOT_OFFERED)
        with self._running(client, "assign", TOPIC, SHARDS, len(self.expected)) as running:
            running.wait()
        return _yes(differences(running.records, self.expected))

    def restarted(self, client: Client) -> Outcome:
        """Reads a part as a member of a group, commits and leaves; another member of the same name
        continues with the rest. Nothing comes twice, since the driver commits exactly the records
        that it has written out."""
        group = f"restarted-{uuid4()}"
        parts: list[list[Record]] = []
        for count in (FIRST_PART, len(self.expected) - FIRST_PART):
            with self._running(client, "group", TOPIC, group, count) as running:
                running.wait()
            parts.append(running.records)
        wrong = differences(parts[0] + parts[1], self.expected)
        behind = {
            partition: offset + 1
            for partition, offset in {
                each.partition: each.offset for part in parts for each in part
            }.items()
        }
        if (committed := self._committed(group)) != behind:
            wrong.append(f"committed {committed}, read up to {behind}")
        return _yes(wrong)

    def gateway_dies(self, client: Client) -> Outcome:
        """See :mod:`tests.clients.grid.gateway_death`."""
        if self._deaths is None:
            self._deaths = gateway_death.die(
                {name: each for name, each in CLIENTS.items() if why_not(each) is None},
                self.directory,
            )
        wrong = self._deaths[client.name]
        return (
            Outcome("yes, in a new process", wrong)
            if client.dies_with_its_coordinator and not wrong
            else _yes(wrong)
        )

    def write(self, client: Client) -> Outcome:
        """A record is refused, and the producer says that it is not allowed to write to the
        topic."""
        return self._refused(client, "produce", ("topic",))

    def transaction(self, client: Client) -> Outcome:
        """Likewise before the first record: there are no transactions. kafkajs hides the reason,
        and says that it has found no coordinator for them."""
        return self._refused(
            client,
            "transaction",
            ("cluster", "request type", "no transactions", _NO_COORDINATOR.lower()),
        )

    def _refused(self, client: Client, mode: str, words: Sequence[str]) -> Outcome:
        if mode not in client.modes:
            return Outcome(NOT_OFFERED)
        with self._running(client, mode, "trips") as running:
            running.wait()
        said = [event["error"] for event in running.events("refused")]
        is_told = any(
            "authoriz" in each.lower()
            or "no transactions" in each
            or (mode == "transaction" and _NO_COORDINATOR in each)
            for each in said
        )
        if (
            running.events("written")
            or not is_told
            or not any(word in each.lower() for each in said for word in words)
        ):
            return Outcome(
                "no", [f"it was not told that it may not write: {said}; {running.said()}"]
            )
        return Outcome("refused")

    def _running(self, client: Client, mode: str, *words: object) -> RunningClient:
        name = client.name.replace("/", "-").replace(" ", "")
        return RunningClient(
            client, self.directory / f"{name}-{mode}.log", mode, self.gateway.bootstrap, *words
        )

    def _committed(self, group: str) -> dict[int, int]:
        """As it stands in the store."""
        with (
            Datastore.open_embedded(self.store) as datastore,
            closing(open_coordinator(IN_STORE, datastore.state)) as coordinator,
        ):
            return {
                partition: each.offset
                for (_, partition), each in coordinator.fetch_offsets(group).items()
            }


SCENARIOS: Final[dict[str, Callable[[Grid, Client], Outcome]]] = {
    "by assignment": Grid.by_assignment,
    "in a group, resumes after a restart": Grid.restarted,
    "one of two gateways dies": Grid.gateway_dies,
    "a write": Grid.write,
    "a transaction": Grid.transaction,
}


def why_not(client: Client) -> str | None:
    """Why the client cannot be had here; None when it can. Builds its driver where that was not
    done yet."""
    try:
        client.command("group", "", "", "", "0")
    except Unavailable as reason:
        return str(reason)
    return None


def differences(records: Sequence[Record], expected: Sequence[Received]) -> list[str]:
    """Between the records that came and all that are there, each once, in the order of its
    partition."""
    wrong = []
    wanted = {
        (each.partition, each.offset): Record(
            each.partition, each.offset, (each.key or b"").decode(), (each.value or b"").decode()
        )
        for each in expected
    }
    came = {(each.partition, each.offset) for each in records}
    if missing := wanted.keys() - came:
        wrong.append(f"{len(missing)} records did not come, the first one {min(missing)}")
    if others := [each for each in records if wanted.get((each.partition, each.offset)) != each]:
        wrong.append(f"{len(others)} records are not those of the log, the first one {others[0]}")
    if len(came) != len(records):
        wrong.append(f"{len(records) - len(came)} records came more than once")
    last: dict[int, int] = {}
    for each in records:
        if each.offset <= last.get(each.partition, -1):
            wrong.append(
                f"partition {each.partition}: {each.offset} came after {last[each.partition]}"
            )
            break
        last[each.partition] = each.offset
    return wrong


def _yes(wrong: Sequence[str]) -> Outcome:
    return Outcome("no" if wrong else "yes", wrong)
