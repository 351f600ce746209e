"""The promises of coordination: members, leaders, owners of partitions, and offsets of groups.

``tests/contract/coordinator/`` holds every implementation to these numbers.

    C1  A member is alive from ``join`` until ``leave``, or until its lease runs out because it did
        not ``renew`` in time. A lease that ran out is the end of that session: the next ``renew``
        joins again, under a higher epoch.
    C2  At most one member leads a group at a time, by the coordinator's own clock; a leader that
        goes is replaced once its lease has run out.
    C3  ``assign`` is the leader's: it is refused (StaleWriter) for a member that does not lead at
        that moment.
    C4  A partition has at most one claim. It can be claimed when nobody holds it or its holder's
        session has ended. A claim that was taken over is void for ever: no clock is needed to
        refuse it.
    C5  ``commit_offsets`` under claims is all or nothing, and is refused (StaleWriter) when one of
        the claims is void: a process that was paused and has lost its partitions cannot move an
        offset when it wakes up. Entries given along (under claims) are decided by the same commit:
        written for good, or not at all. ``delete_offsets`` under claims is refused likewise.
    C6  A commit is durable once ``commit_offsets`` returned; ``fetch_offsets`` gives its offsets.
        Groups do not see each other's offsets.
    C7  A name is one member's. A member that joins under a name in use ends the earlier session,
        which can do nothing from then on: its ``renew`` is refused (StaleWriter), it neither leads
        nor claims. Epochs and tokens only rise and are never used twice.
    C8  A coordination may go back in time (a restored ZooKeeper) or be replaced by another one.
        That is noticed before anything is saved in it under a claim: every session and claim of
        before is void then, and ``lineage`` is another one. No clock is compared with another
        process's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cellfeed.bridge.coordination.saved_calls import SavedCall


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has come in a partition: the next offset (added_id) to read.
    ``committed_at_us`` is set by the coordinator."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_us: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """One stay of a member in a group, as ``join`` gave it. ``ttl_s`` is the length of its lease in
    seconds; ``epoch`` distinguishes it from every other stay."""

    group: str
    member: str
    ttl_s: float
    epoch: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work on a partition, until it is released or taken over. ``token`` is the fence
    that goes with everything saved under it; it rises. ``identity`` is random where the
    coordination could go back in time and give the same token out a second time."""

    group: str
    topic: str
    partition: int
    member: str
    token: int
    identity: str = ""


TopicPartition = tuple[str, int]


class Offsets(Protocol):
    """The part that consumer groups of the gateway need."""

    @property
    def keeps_in_store(self) -> bool:
        """Whether all of it is in the datastore's own state table, so that it is away, and lost,
        only together with the cells."""
        ...

    def lineage(self, group: str) -> str:
        """Names the memory that the group's offsets are in. It is another one when they were lost,
        when the memory went back in time, or when they are kept elsewhere. Raises Unavailable."""
        ...

    def why_changed(self) -> str | None:
        """Why lineages are others than before, as far as this process knows."""
        ...

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        claims: Sequence[Claim] = (),
        entries: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """Saves offsets, and with them ``entries`` of the state table (None deletes). Without any
        of both it only asks whether the claims still hold."""
        ...

    def fetch_offsets(
        self, group: str, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of the partitions asked for (all that the group has, without any); those
        never committed are left out."""
        ...

    def when_saved(self, call: SavedCall) -> None:
        """Has ``call`` called with the group's name behind each ``commit_offsets`` of this object
        that has saved offsets."""
        ...

    def has_unwritten_entries(self, group: str) -> bool:
        """Whether entries that were committed with offsets of the group are not in the state table
        yet. Raises Unavailable."""
        ...

    def groups(self) -> list[str]:
        """Groups that have offsets, by name."""
        ...

    def delete_offsets(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        claims: Sequence[Claim] = (),
    ) -> None:
        """Forgets the group's offsets of the partitions named (all that it has, without any); a
        partition without one is no error. Refused (StaleWriter) as a commit is when one of the
        claims is void."""
        ...

    def close(self) -> None:
        """Ends its sessions and connections."""
        ...


class Coordinator(Offsets, Protocol):
    """See the module's promises."""

    def join(self, group: str, member: str, ttl_s: float) -> Session: ...

    def renew(self, session: Session) -> Session:
        """Extends the lease and gives the same session back, or a new one (a higher epoch) when the
        lease had run out.

        Raises StaleWriter when another process has joined under the same name since.
        """
        ...

    def leave(self, session: Session) -> None:
        """Ends the membership, and the lead if this member had it."""
        ...

    def members(self, group: str) -> list[str]:
        """Those alive, by name."""
        ...

    def lead(self, session: Session) -> bool:
        """Takes or keeps the lead of the group; False when another member has it, or when this
        session has ended. ``renew`` keeps the lead, too."""
        ...

    def leader(self, group: str) -> str | None: ...

    def assign(self, session: Session, assignment: Mapping[int, str]) -> None: ...

    def assignment(self, group: str) -> Mapping[int, str]:
        """Partition to member, as the last leader wrote it; empty before the first. The same object
        as before where nothing has changed."""
        ...

    def claim(self, session: Session, topic: str, partitions: Collection[int]) -> dict[int, Claim]:
        """The claims that could be had: those that no other live session holds. One's own earlier
        claim is replaced by the new one."""
        ...

    def release(self, claims: Collection[Claim]) -> None:
        """Gives partitions back; nothing happens to those whose claim is void."""
        ...

    def owners(
        self, group: str, topic: str, partitions: Collection[int] | None = None
    ) -> dict[int, str]:
        """Partition to the member that holds its claim, alive or not; of all partitions, or of
        those asked for."""
        ...
