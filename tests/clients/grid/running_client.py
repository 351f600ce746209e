"""A driver at work: its output so far, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tests.clients.grid.clients import Client, Event

END_TIMEOUT_S: Final = 120.0
"""A member that ends commits its positions and leaves its group."""


class Record(NamedTuple):
    """A record as a client gave it, key and value as text."""

    partition: int
    offset: int
    key: str | None
    value: str | None


class RunningClient:
    """Use in a ``with``, which ends it by force. Its standard error goes to ``log``."""

    def __init__(self, client: Client, log: Path, *words: object) -> None:
        self._client = client
        self._log = log
        self._command = client.command(*map(str, words))
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self._acknowledged: dict[int, int] = {}
        self._events: list[Event] = []
        self._unreadable: list[str] = []
        self.starts = 0

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_by_force()

    def start_again_if_it_ended(self) -> None:
        """Another process that continues for the first one, as a supervisor would start it; their
        records are one sequence."""
        if self._process.poll() is not None:
            self._end_by_force()
            self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.starts += 1

    def _end_by_force(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    @property
    def records(self) -> list[Record]:
        """So far."""
        with self._lock:
            return list(self._records)

    @property
    def acknowledged(self) -> dict[int, int]:
        """By partition the last commit that was acknowledged."""
        with self._lock:
            return dict(self._acknowledged)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Other events than records, so far."""
        with self._lock:
            return [event for event in self._events if event["event"] == name]

    def end(self) -> None:
        """Asks it to end in order and waits for it."""
        assert self._process.stdin is not None
        if self._client.ends_by_signal and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.stdin.close()
        self.wait()

    def wait(self) -> None:
        """Until it has ended by itself and all its lines are read."""
        try:
            code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(
                f"not within {END_TIMEOUT_S} s: {self._client.name} has ended; {len(self.records)}"
                f" records; {self.said()}"
            ) from late
        self._reader.join()
        assert not self._unreadable, f"{self._client.name} wrote {self._unreadable[0]!r}"
        by_signal = (128 + signal.SIGTERM, -signal.SIGTERM) if self._client.ends_by_signal else ()
        assert code == 0 or code in by_signal or self.events("refused"), (
            f"{self._client.name} ended with {code}; {self.said()}"
        )

    def said(self) -> str:
        """The end of its standard error."""
        return self._log.read_text(errors="replace")[-1_500:]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = self._client.event(line.decode())
            except (ValueError, KeyError, TypeError):
                with self._lock:
                    self._unreadable.append(line.decode(errors="replace"))
                continue
            if event is None:
                continue
            with self._lock:
                if event["event"] == "record":
                    self._records.append(
                        Record(event["partition"], event["offset"], event["key"], event["value"])
                    )
                    continue
                if event["event"] == "committed":
                    self._acknowledged.update(
                        {int(partition): offset for partition, offset in event["offsets"].items()}
                    )
                self._events.append(event)
