"""Offsets of several shards of a group in one commit.

A save costs a commit of the coordination. Where cells come all over thousands of shards, each cell
has one, behind a few threads. Those that are due while one is under way go together
(:mod:`cellfeed.store.commit.gathered`), each under its own claim. Where one of the claims is void,
nothing of it is saved, and each shard saves its own: then the run that was overtaken hears of it. A
save with entries of the state table is never gathered: it is one commit by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from cellfeed.bridge.coordination.contract import (
    Claim,
    CommittedOffset,
    Coordinator,
    TopicPartition,
)
from cellfeed.store.commit.gathered import Gathered

OFFSETS_IN_A_COMMIT_MAX: Final = 500
"""Each comes with the check of its claim, some 400 bytes for both: well below the megabyte that
ZooKeeper takes in one request."""


class OffsetCommits(Protocol):
    """The part of :class:`cellfeed.bridge.coordination.contract.Offsets` that a run needs."""

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        claims: Sequence[Claim] = (),
        entries: Mapping[str, bytes | None] | None = None,
    ) -> None: ...


class _Save(NamedTuple):
    offsets: Mapping[TopicPartition, CommittedOffset]
    claims: Sequence[Claim]


class GatheredSaves:
    """:class:`OffsetCommits` of one group. Any number of threads, each with shards of its own."""

    def __init__(self, coordinator: Coordinator, group: str) -> None:
        self._coordinator = coordinator
        self._group = group
        self._saves: Gathered[_Save] = Gathered(self._together)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        claims: Sequence[Claim] = (),
        entries: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """As the coordinator's."""
        if entries or not offsets or group != self._group:
            self._coordinator.commit_offsets(group, offsets, claims=claims, entries=entries)
        else:
            self._saves.call(_Save(offsets, claims))

    def _together(self, saves: Sequence[_Save]) -> None:
        offsets = {key: offset for save in saves for key, offset in save.offsets.items()}
        self._coordinator.commit_offsets(
            self._group, offsets, claims=[claim for save in saves for claim in save.claims]
        )
