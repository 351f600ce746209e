"""Counts of the files of one gateway's kept blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BlockFileCounts:
    """Since the start: blocks read from files; files written, found damaged, found to come from
    another history of the store, dropped for the budget; blocks that were not written because too
    many waited, and writes that failed."""

    read: int = 0
    written: int = 0
    damaged: int = 0
    foreign: int = 0
    evicted: int = 0
    passed_over: int = 0
    failed: int = 0
