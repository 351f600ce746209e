"""Two actors at once on clusters of real servers: promotions, rejoins, moves, erasures, trims, and
writes of a process that has not heard of any of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.clusters.moves import mover
from cellfeed.store.clusters.moves.steps import Moved
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.promotion import Promotion
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.engines.mysql.connection import TIMEOUT_S
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.replication import minion_status
from cellfeed.store.errors import CellfeedError, OutcomeUnknown, Unavailable
from tests.races.clusters import RACED, SHARD, Place
from tests.races.scheduler import Case, Run
from tests.support.mariadb_cluster import DATASTORE, SHARDS
from tests.support.waiting import wait_until

OF_PROMOTIONS: Final = (
    "promote.after_fence",
    "promote.after_promise",
    "role.raise.before",
    "role.raise.after",
    "role.open.before",
)
OF_MOVES: Final = (
    "move.after_mark",
    "move.before_fence",
    "move.before_switch",
    "move.after_switch",
)
EVERYWHERE: Final = (
    *OF_PROMOTIONS,
    *OF_MOVES,
    "claim.lock.before",
    "claim.lock.after",
    "fence.server.before",
    "fence.server.after",
    "role.promise.before",
    "role.follow.before",
    "role.follow.after",
    "role.open.after",
    "rejoin.after_record",
    "cas.guard.before",
    "cas.guard.after",
    "cas.shard.before",
    "cas.shard.after",
    "cas.alter.before",
    "promote.after_collect",
    "promote.after_repoint",
    "move.after_begin",
    "move.after_fence",
    "move.after_hide",
    "move.after_rest",
    "move.between_maps",
    "cluster.erase.before_buffers",
)
"""Where turns change in orders by seed. A process that stops there holds nothing that another one
has to wait for."""


def _case(place: Place, *actors: Callable[[], Any], check: Callable[[Run], None]) -> Case:
    def checked(done: Run) -> None:
        for ended in done.ended:
            assert isinstance(ended.error, CellfeedError | None), f"a defect: {ended.error!r}"
        check(done)
        place.verify(done)

    return Case(actors, checked)


def _promoted(place: Place, gone_in: int | None = None) -> Promotion:
    with closing(place.operator()) as cluster:
        return promote(cluster, gone_in=gone_in)


def two_promote(place: Place, *, supervised: bool = False) -> Case:
    """Two operators, or one beside a supervisor that takes the master for gone."""
    role = place.role()

    def check(done: Run) -> None:
        promotions = [each.result for each in done.ended if each.result is not None]
        # A supervisor that finds the master well holds the lock for that long.
        assert promotions or supervised, (
            f"nobody promoted: {[str(each.error) for each in done.ended]}"
        )
        raised = [each.epoch for each in promotions if each.old_master]
        assert len(set(raised)) == len(raised), f"epochs {raised}"
        assert place.role().epoch == max([role.epoch, *raised])

    second = partial(_promoted, place, role.epoch) if supervised else partial(_promoted, place)
    return _case(place, partial(_promoted, place), second, check=check)


def promotion_beside_an_old_process(place: Place) -> Case:
    """A process that knows the old role puts a cell and commits an entry on the old master."""
    role, [cell] = place.role(), place.new_cells()
    url = place.clusters[RACED].servers[role.master].url

    def write() -> tuple[PutResult, int | None]:
        with closing(MySqlServer(url, TIMEOUT_S)) as server:
            engine = MySqlEngine(server, DATASTORE, SHARDS)
            [result] = engine.put([cell], role.terms)
            return result, engine.state.commit({"old": b"1"}, None, role.terms)

    def check(done: Run) -> None:
        written = done.ended[1]
        if written.result is not None:
            result, revision = written.result
            place.note([cell], [result])
            assert revision is not None
            assert revision not in place.revisions, f"revision {revision} was given twice"
            place.revisions.append(revision)

    return _case(place, partial(_promoted, place), write, check=check)


def promotion_beside_a_rejoin(place: Place) -> Case:
    """The master before returns while the present one is replaced."""
    old = place.role().master
    promote(place.admin)
    place.put()

    def rejoin() -> None:
        with closing(place.operator()) as cluster:
            follow_again(cluster, old)

    def check(done: Run) -> None:
        role = place.role()
        if done.ended[1].error is None and old != role.master:
            status = minion_status(place.admin.server(old))
            assert status is not None
            assert status.follows(place.admin.server(role.master)), (
                f"{old} has rejoined, and does not follow {role.master}"
            )

    return _case(place, partial(_promoted, place), rejoin, check=check)


def _moved(place: Place) -> Moved:
    """To the cluster that does not have the shard; a mover that fails is not tried again."""
    [owner] = place.owners()
    return _moved_to(place, "c2" if owner == "c1" else "c1")


def _moved_to(place: Place, to: str) -> Moved:
    servers = place.operators()
    try:
        return mover.move_shard(servers, SHARD, to, place.engine.dictionaries.complete, again_s=0)
    finally:
        for each in servers.values():
            each.close()


def move_beside_a_promotion(place: Place) -> Case:
    """Of the cluster that has the shard, or gets it."""
    return _case(place, partial(_moved, place), partial(_promoted, place), check=lambda _: None)


def two_move(place: Place) -> Case:
    """One shard to the same cluster; one of them has moved it, or finds it moved."""
    [owner] = place.owners()
    to = "c2" if owner == "c1" else "c1"

    def check(done: Run) -> None:
        assert any(isinstance(each.result, Moved) for each in done.ended), "nobody moved it"
        assert place.owners() == [to]

    mover_ = partial(_moved_to, place, to)
    return _case(place, mover_, mover_, check=check)


def _erased(place: Place, row_key: bytes) -> bool:
    for _ in range(100):
        if place.engine.erase(row_key).done:
            return True
    raise AssertionError("the erasure does not end")


def _erased_by_now(place: Place, row_key: bytes) -> bool:
    """False while a node is left alone after the race broke its connections."""
    with suppress(Unavailable):
        return _erased(place, row_key)
    return False


def erasure_beside(place: Place, other: Callable[[Place], object]) -> Case:
    """A row goes while its shard moves, or its master is replaced. Once it was answered no body is
    left; when it was not, it is erased again."""
    [cell] = place.put()

    def check(done: Run) -> None:
        if done.ended[0].error is None:
            place.erased.add(cell.row_key)
        elif not isinstance(done.ended[0].error, OutcomeUnknown):
            return
        else:
            place.heal()
            wait_until(lambda: _erased_by_now(place, cell.row_key), "the row is erased")
            place.erased.add(cell.row_key)

    return _case(place, partial(_erased, place, cell.row_key), partial(other, place), check=check)


def trim_beside_a_move(place: Place) -> Case:
    """The log's start moves up while the log is copied."""
    place.put(4)
    below = place.log_start + 2

    def check(done: Run) -> None:
        if done.ended[0].error is None:
            place.log_start = below
        else:
            place.log_start = place.answer(lambda: place.engine.heads([SHARD]))[SHARD].log_start

    return _case(
        place,
        lambda: place.engine.trim(SHARD, below),
        partial(_moved, place),
        check=check,
    )


@dataclass(frozen=True)
class Raced:
    """A case. ``points``: where turns change when every order is tried, ``orders_max`` at most.
    ``known``: points and steps of orders that go to the heart of it; the suite tries them."""

    make: Callable[[Place], Case]
    points: tuple[str, ...]
    known: tuple[tuple[str, tuple[int, ...]], ...]
    orders_max: int = 100


_INSIDE: Final = (0, 1, 0)
"""The second actor comes while the first one stands at the point."""

_FIRST_INSIDE: Final = (1, 0, 1)
_FENCED, _RAISED = "promote.after_fence", "role.raise.after"

CASES: Final = {
    "two operators promote": Raced(
        two_promote, OF_PROMOTIONS, ((_FENCED, _INSIDE), (_RAISED, _INSIDE))
    ),
    "an operator and a supervisor promote": Raced(
        partial(two_promote, supervised=True), OF_PROMOTIONS, ((_RAISED, _INSIDE),)
    ),
    "a promotion beside an old process": Raced(
        promotion_beside_an_old_process,
        (_FENCED, _RAISED, "cas.guard.before", "cas.guard.after"),
        ((_FENCED, _INSIDE), (_RAISED, _INSIDE), ("cas.guard.before", _FIRST_INSIDE)),
    ),
    "a promotion beside a rejoin": Raced(
        promotion_beside_a_rejoin,
        (_FENCED, _RAISED, "rejoin.after_record", "role.follow.before"),
        (("rejoin.after_record", _FIRST_INSIDE), (_RAISED, _INSIDE)),
    ),
    "a move beside a promotion": Raced(
        move_beside_a_promotion,
        ("move.before_fence", "move.before_switch", _FENCED, _RAISED),
        (("move.before_fence", _INSIDE), ("move.before_switch", _INSIDE), (_FENCED, _FIRST_INSIDE)),
    ),
    "two move one shard": Raced(
        two_move, OF_MOVES, (("move.before_fence", _INSIDE), ("move.before_switch", _INSIDE))
    ),
    "an erasure beside a promotion": Raced(
        partial(erasure_beside, other=_promoted),
        ("cluster.erase.before_buffers", _FENCED, _RAISED),
        (("cluster.erase.before_buffers", _INSIDE), (_RAISED, _FIRST_INSIDE)),
    ),
    "an erasure beside a move": Raced(
        partial(erasure_beside, other=_moved),
        ("cluster.erase.before_buffers", *OF_MOVES),
        (("move.before_fence", _FIRST_INSIDE), ("cluster.erase.before_buffers", _INSIDE)),
    ),
    "a trim beside a move": Raced(
        trim_beside_a_move,
        OF_MOVES,
        (("move.after_mark", _FIRST_INSIDE), ("move.before_fence", _FIRST_INSIDE)),
    ),
}
"""By the two simultaneous acts."""
