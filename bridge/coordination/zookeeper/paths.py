"""Where things are in ZooKeeper, below the chroot. Names are percent-encoded, so a group may be
called anything.

    /consumers/<group>/offsets/<topic>/<partition>      the next offset, decimal text: Kafka's
                                                        classic layout
    /cellfeed/details/<group>/<topic>/<partition>       {"leader_epoch", "metadata"} of an offset,
                                                        where it has any; of the transaction that
                                                        wrote the offset,
                                                        so an offset set by hand has none
    /cellfeed/era, /cellfeed/eras/…, /cellfeed/witnesses/…      whether this is the ZooKeeper that
                                                                the datastore knows, see
                                                                ``zookeeper/history.py``
    /cellfeed/history                                   whose all of this is, see
                                                        ``zookeeper_owner.py``
    /cellfeed/groups/<group>                            the group's birth, decimal text, see
                                                        ``zookeeper/births.py``
    /cellfeed/groups/<group>/<birth>/epoch              empty; its version is the last epoch given
                                                        out
                            …/members/<member>@<epoch>  ephemeral: a live session; empty, or
                            {"renews": epoch} behind an earlier one
                            …/leader                    {"member", "epoch"}: leads as long as that
                                                        session lives
                            …/assignment                {member: [partition]}
                            …/claims/<topic>/<partition>    {"member", "epoch"}, empty when
                                                            released; never deleted: its version is
                                                            the claim's token
                            …/claims/<topic>/<partition>/<identity>
                                  empty; the claim's random identity, "era-…"
                            …/entries/<topic>@<partition>@<identity>@<sequence>
                                  state entries on their way into the state table, see
                                                        ``zookeeper/offsets.py``

Versions of a znode begin again when it is made again. The birth in front of them makes epochs and
tokens rise for ever: a ZooKeeper that was wiped, or that went back in time, gives the group another
one. An epoch or token is ``birth << 32 | version``.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from cellfeed.bridge.coordination.contract import Claim

_VERSION_BITS: Final = 32


def joined(birth: int, version: int) -> int:
    """An epoch or a token."""
    return birth << _VERSION_BITS | version


def birth_of(number: int) -> int:
    """Of an epoch or a token."""
    return number >> _VERSION_BITS


def version_of(number: int) -> int:
    """Of an epoch or a token."""
    return number & ((1 << _VERSION_BITS) - 1)


def quoted(name: str) -> str:
    """A znode's name; ``.`` and ``..`` are none."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def unquoted(name: str) -> str:
    """The argument of :func:`quoted`."""
    return unquote(name)


class Paths:
    """Paths under a chroot (empty, or ``/a/b``)."""

    def __init__(self, chroot: str) -> None:
        self.consumers = f"{chroot}/consumers"
        self._own = f"{chroot}/cellfeed"

    @property
    def own(self) -> str:
        return self._own

    @property
    def history(self) -> str:
        return f"{self._own}/history"

    @property
    def era(self) -> str:
        return f"{self._own}/era"

    @property
    def eras(self) -> str:
        return f"{self._own}/eras"

    def fence_of_era(self, era: str) -> str:
        return f"{self.eras}/{era}"

    @property
    def witnesses(self) -> str:
        return f"{self._own}/witnesses"

    def witness(self, era: str, process: str) -> str:
        return f"{self.witnesses}/{era}@{process}"

    def offsets(self, group: str) -> str:
        return f"{self.consumers}/{quoted(group)}/offsets"

    def offset(self, group: str, topic: str, partition: int) -> str:
        return f"{self.offsets(group)}/{quoted(topic)}/{partition}"

    def details(self, group: str) -> str:
        return f"{self._own}/details/{quoted(group)}"

    def detail(self, group: str, topic: str, partition: int) -> str:
        return f"{self.details(group)}/{quoted(topic)}/{partition}"

    def group(self, group: str) -> str:
        return f"{self._own}/groups/{quoted(group)}"

    def born(self, group: str, birth: int) -> str:
        """The folder of one birth of the group."""
        return f"{self.group(group)}/{birth}"

    def epoch(self, group: str, birth: int) -> str:
        return f"{self.born(group, birth)}/epoch"

    def members(self, group: str, birth: int) -> str:
        return f"{self.born(group, birth)}/members"

    def member(self, group: str, member: str, epoch: int) -> str:
        return f"{self.members(group, birth_of(epoch))}/{quoted(member)}@{version_of(epoch)}"

    def leader(self, group: str, birth: int) -> str:
        return f"{self.born(group, birth)}/leader"

    def assignment(self, group: str, birth: int) -> str:
        return f"{self.born(group, birth)}/assignment"

    def claims(self, group: str, birth: int, topic: str) -> str:
        return f"{self.born(group, birth)}/claims/{quoted(topic)}"

    def claim(self, group: str, topic: str, partition: int, birth: int) -> str:
        return f"{self.claims(group, birth, topic)}/{partition}"

    def identity(self, claim: Claim) -> str:
        """Of a claim that was given out."""
        birth = birth_of(claim.token)
        return f"{self.claim(claim.group, claim.topic, claim.partition, birth)}/{claim.identity}"

    def entries(self, group: str, birth: int) -> str:
        return f"{self.born(group, birth)}/entries"

    def folders(self, group: str, birth: int) -> tuple[str, ...]:
        """The znodes of a new birth of a group, in the order of their making: a group that has its
        epoch is complete."""
        return (
            self.members(group, birth),
            self.entries(group, birth),
            self.leader(group, birth),
            self.assignment(group, birth),
            self.epoch(group, birth),
        )
