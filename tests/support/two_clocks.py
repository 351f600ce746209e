"""The clock of a store and the clock of its processes, moved by hand."""

from __future__ import annotations


class Time:
    """The store's clock, which may step, and the clock of the processes, which never does; both are
    moved by the test."""

    step_us = 0
    passed_us = 1_700_000_000_000_000

    @property
    def now_us(self) -> int:
        return self.passed_us + self.step_us

    def now_s(self) -> float:
        return self.passed_us / 1e6

    def step_s(self, seconds: float) -> None:
        """Puts the store's clock forward or back: nothing else has passed."""
        self.step_us += int(seconds * 1e6)

    def pass_s(self, seconds: float) -> None:
        self.passed_us += int(seconds * 1e6)


HOUR_S = 3600.0
