"""Giving a trigger's group another name: its offsets, parked cells, settled start, tries on record,
pause and history go along. So do those of a trigger that earlier versions named after its
function, by themselves (``earlier_names.py``).

**Fenced first.** The process that renames joins the old group as a member that gets no shards, and
claims all of them; with a worker there nothing is renamed. **Decided in one commit** of the state
table: every entry under the new name, none under the old one, each only if nobody changed it since
it was read. It leaves two notes: ``renamed/<old>``, and a pause of the old group. So a worker of an
earlier version that starts late waits instead of beginning again.

With coordination in the store the offsets are among the entries. With ZooKeeper the entries have
kept offsets: they say where the next owner of each shard continues, and it saves that under the new
name. Crash points:

    before the commit       nothing was renamed; the claims are free once the session has run out
    after it                all of it is the new group's; offsets of the old name may be left in
                            ZooKeeper, where nobody uses them
    run again               finds the note; takes away the rest
    two at once             claims are one's alone, and the commit of the other finds other versions
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import Final

import msgspec

from cellfeed.bridge.coordination.contract import Claim, Coordinator
from cellfeed.bridge.groups.control import OPERATOR, notify_workers
from cellfeed.bridge.groups.definition import belongs_to_cellfeed, refuse_consumers
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.groups.membership import LeaseKeeper, Membership
from cellfeed.bridge.triggers.operate.rename_decision import Decision
from cellfeed.bridge.triggers.operate.renamed import Renamed, has_begun, note_key, renamed
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, InvalidRequest, NotFound, Refused
from cellfeed.store.failpoints import declare, failpoint

declare(
    "rename.after_claims", "rename.before_decision", "rename.after_decision", "rename.after_end"
)


LEASE_S: Final = 10.0
"""How long the old group's shards wait for a rename that was killed."""


def rename(
    datastore: Datastore,
    coordinator: Coordinator,
    old: str,
    new: str,
    operator: Operator,
    *,
    lease_s: float = LEASE_S,
) -> None:
    """Gives a group without workers another name. Raises Refused, with nothing changed, while it
    has workers, when its offsets are lost, or when the new group has worked already; GroupTaken
    when that is a consumer group; InvalidRequest, NotFound, Unavailable."""
    state = datastore.state
    note = renamed(state, old)
    if note is not None and note.to == new:
        finish_rename(datastore, coordinator, old)
        return
    if not has_begun(state, old):
        gone = f": it is {note.to!r} now" if note is not None else ""
        raise NotFound(f"no trigger {old!r} has ever run here{gone}")
    if not new or belongs_to_cellfeed(new):
        raise InvalidRequest(f"TO {new!r}: no name for a trigger's group")
    refuse_consumers(state, coordinator, new)
    if has_begun(state, new):
        raise Refused(f"group {new!r} has offsets of its own: nothing is renamed to it")
    _refuse_at_work(coordinator, old)
    member = f"{OPERATOR}{operator.name} {os.getpid()}-{secrets.token_hex(4)}"
    membership = Membership(coordinator, old, member, lease_s)
    keeper = LeaseKeeper([membership], lease_s)
    claims: dict[int, Claim] = {}
    try:
        _refuse_at_work(coordinator, old, but=member)
        claims = coordinator.claim(membership.session, datastore.name, range(datastore.shards))
        if len(claims) < datastore.shards:
            raise Refused(f"group {old!r} is at work: not all of its shards are free; try again")
        failpoint("rename.after_claims")
        decision = Decision(state, old, new)
        decision.move_entries()
        decision.move_position(datastore, coordinator, claims)
        decision.note(operator)
        failpoint("rename.before_decision")
        if state.commit(decision.write, expect=decision.expect) is None:
            raise Refused(f"group {old!r} or {new!r} changed meanwhile: nothing is renamed")
        failpoint("rename.after_decision")
        finish_rename(datastore, coordinator, old)
    finally:
        with suppress(CellfeedError):
            coordinator.release(list(claims.values()))
        with suppress(CellfeedError):
            membership.leave()
        keeper.close()
        notify_workers(state, new)


def finish_rename(datastore: Datastore, coordinator: Coordinator, old: str) -> None:
    """Takes away offsets of the old name that are kept elsewhere. Raises Unavailable."""
    state = datastore.state
    found = state.get(note_key(old))
    note = msgspec.json.decode(found.value, type=Renamed) if found is not None else None
    if found is None or note is None or note.ended:
        return
    if not coordinator.keeps_in_store:
        coordinator.delete_offsets(old)
    ended = msgspec.json.encode(msgspec.structs.replace(note, ended=True))
    state.commit({found.key: ended}, expect={found.key: found.version})
    failpoint("rename.after_end")


def _refuse_at_work(coordinator: Coordinator, group: str, *, but: str = "") -> None:
    if others := [each for each in coordinator.members(group) if each != but]:
        raise Refused(f"group {group!r} is at work ({', '.join(others)}): end its workers first")
