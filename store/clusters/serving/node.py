"""One storage node of a cluster: its connections, its breaker, and a watcher that keeps its last
report.

The watcher is a thread of its own per node with short time-outs, so a node that hangs holds up
nobody: a caller that needs fresh heads asks all nodes at once (:meth:`StorageNode.ask`) and waits
for the answers only so long.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from cellfeed.store.background import SupervisedThread
from cellfeed.store.cells.cell import NewCell, PutResult, StoredCell
from cellfeed.store.clusters.model.roles import Role, decode_role
from cellfeed.store.clusters.serving.breaker import Breaker
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.engines.contract.buffer import NodeBufferTable
from cellfeed.store.engines.contract.dictionaries import NodeDictionaryTable
from cellfeed.store.engines.contract.engine import NodeStateTable, RewritableEngine
from cellfeed.store.engines.contract.indexes import NodeIndexStore
from cellfeed.store.engines.contract.values import ErasedStep, Look, WriteTerms
from cellfeed.store.engines.mysql.guard import ROLE_KEY
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    NoMinion,
    ProtectData,
    ShardMoving,
    StorageUnavailable,
    Unavailable,
)
from cellfeed.store.limits import ERASE_STEP_CELLS, TRIM_STEP_CELLS
from cellfeed.store.repeated_warnings import RepeatedWarning

_log: Final = logging.getLogger("cellfeed.clusters")

WATCH_TIMEOUT_S: Final = 1.0
"""Longest wait of the watcher for one answer, in seconds."""

READ_TIMEOUT_S: Final = 3.0
"""Longest wait of a read for one answer before another node is asked."""

WRITE_TIMEOUT_S: Final = 15.0
"""Longest wait of a write for one answer: above InnoDB's lock wait, so that a lock time-out is
reported as such."""

SLOW_S: Final = 0.1
"""A look that has taken so long already is not waited for any more; the node's report before it
counts."""

DAMAGE_S: Final = 60.0
"""How long other nodes are asked before one whose read met damage, in seconds: then it may be
mended, and one read that fails once more costs milliseconds."""

_IDLE_LOOK_S: Final = 0.5
"""How often a node is looked at that nobody asks about: a promotion by others is noticed within
this."""

T = TypeVar("T")


class NodeEngine(RewritableEngine, Protocol):
    """The engine of one node. A put, a trim or an erasure under ``terms`` is refused (StaleWriter,
    nothing written) when their leader epoch is not the shards' own."""

    def put(self, cells: Sequence[NewCell], terms: WriteTerms | None = None) -> list[PutResult]: ...

    def trim(
        self,
        shard: int,
        below: int,
        cells_max: int = TRIM_STEP_CELLS,
        terms: WriteTerms | None = None,
    ) -> int: ...

    def erase(
        self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS, terms: WriteTerms | None = None
    ) -> ErasedStep: ...

    def settle_puts(self, shard: int, terms: WriteTerms | None = None) -> int: ...

    def replace_bodies(
        self,
        shard: int,
        cells: Sequence[tuple[StoredCell, bytes]],
        terms: WriteTerms | None = None,
    ) -> int: ...

    def memory_advice(self) -> str | None:
        """A hint to the node's operator about its memory, in a sentence; None when nothing."""
        ...

    def kept_shards(self) -> list[int]:
        """Shards that have left the node's cluster, or are about to, and whose rows it still
        has."""
        ...

    @property
    def connected_at_s(self) -> float:
        """When the youngest connection was begun, by the monotonic clock: the server may have
        restarted before that."""
        ...

    def expect(self, cluster: str, history_id: str) -> None:
        """From now on calls raise ForeignServer where another server than one of this cluster and
        history answers."""
        ...

    def settle(self, terms: WriteTerms) -> None:
        """Returns when a write under these terms would be acknowledged, so when a minion has all
        that a semi-synchronous master holds."""
        ...

    def look(self, state_key: str, seen: object | None) -> Look:
        """All that a watcher asks about, in one round trip: a state entry's value, and the counters
        unless they are those of the look whose token is ``seen``."""
        ...

    def promised_epoch(self, history_id: str) -> int:
        """The highest epoch of a promotion that the node was asked to remember; -1 when none
        (:mod:`cellfeed.store.clusters.model.promises`)."""
        ...

    @property
    def state(self) -> NodeStateTable: ...

    @property
    def indexes(self) -> NodeIndexStore: ...

    @property
    def dictionaries(self) -> NodeDictionaryTable: ...

    def abort(self) -> None:
        """Cuts off calls under way, which fail as when the network does. Later calls work."""
        ...

    @property
    def buffer(self) -> NodeBufferTable:
        """Cells of other clusters that wait on this one."""
        ...


OpenNode = Callable[[float], NodeEngine]
"""Opens a node's storage with a time-out in seconds for each answer. Raises StorageUnavailable
while it is away."""


class StorageNode:
    """See the module. Any number of threads."""

    def __init__(self, name: str, open_node: OpenNode) -> None:
        self.name = name
        self.breaker = Breaker()
        self.view: NodeView | None = None
        self.why_not: str | None = "not looked at yet"
        """The last error while the node does not answer; None while it does."""
        self.refused: CellfeedError | None = None
        """Why its storage takes no part although it answers; None while it does, or does not
        answer."""
        self.damaged: str | None = None
        """The last damage that a read met in its tables; None until one does, and again when it is
        away, as it is while it is made a copy of another node."""
        self._damaged_at_s = -math.inf
        self.heard_at_s = -math.inf
        """When the last look that was answered began, by the monotonic clock."""
        self._promised = -1
        self._promised_at_s = -math.inf
        self.is_foreign = False
        """Whether it is another cluster's node, or of another history: nothing is read of it."""
        self.belongs_to: tuple[str, str] | None = None
        """The cluster and the history that the node's server must be of, once they are known: a
        server is asked on every connection, for another one may have the address by now."""
        self.on_role: Callable[[Role], str | None] = lambda _: None
        """The watcher calls it at every look, with the role that the node has heard of. Returns why
        the node takes no part."""
        self._open_node = open_node
        self._engines: dict[float, NodeEngine] = {}
        self._open_lock = threading.Lock()
        self._changed = threading.Condition()
        self._asked = self._begun = self._done = 0
        self._began_at_s = 0.0
        self._token: object | None = None
        self._closed = False
        self._failing = RepeatedWarning(_log)
        self._watcher = SupervisedThread(f"watch-{name}", self._watch)
        self._watcher.start()

    # --- calls ------------------------------------------------------------------------------------

    def call(self, what: Callable[[NodeEngine], T], timeout_s: float = READ_TIMEOUT_S) -> T:
        """Calls the node's engine through the breaker. Raises StorageUnavailable at once while that
        is open. A call that failed counts for the breaker unless the node has answered a look that
        began meanwhile: then the call was slow, and the node is well."""
        if not self.breaker.allows():
            raise StorageUnavailable(f"node {self.name} is left alone for a moment: {self.why_not}")
        began_s = time.monotonic()
        try:
            engine = self._engine(timeout_s)
            if self.belongs_to is not None:
                engine.expect(*self.belongs_to)
            result = what(engine)
        except DataDamaged as error:
            self.breaker.succeeded()
            self.damaged, self._damaged_at_s = str(error), time.monotonic()
            raise
        except (ShardMoving, NoMinion):
            self.breaker.succeeded()  # the node is well
            raise
        except Unavailable as error:
            if self.heard_at_s <= began_s:
                self.breaker.failed()
                self.why_not = str(error)
            raise
        self.breaker.succeeded()
        return result

    @property
    def is_damaged(self) -> bool:
        """Whether a read has met damage in its tables within ``DAMAGE_S``."""
        return self.damaged is not None and time.monotonic() - self._damaged_at_s < DAMAGE_S

    def is_confirmed(self) -> bool:
        """Whether the node, since it was last connected to, has said that a minion has all that it
        holds."""
        with self._open_lock:
            connected_at_s = max(
                (engine.connected_at_s for engine in self._engines.values()), default=-math.inf
            )
        return self.view is not None and self.view.confirmed and self.heard_at_s >= connected_at_s

    def promised_epoch(self, history_id: str, since_s: float) -> int:
        """The highest epoch of a promotion that the node was asked to remember, as it was since
        then, by the monotonic clock; -1 when none. Raises Unavailable."""
        if self._promised_at_s < since_s:
            began_s = time.monotonic()
            self._promised = self.call(
                lambda engine: engine.promised_epoch(history_id), WATCH_TIMEOUT_S
            )
            self._promised_at_s = began_s
        return self._promised

    def _engine(self, timeout_s: float) -> NodeEngine:
        with self._open_lock:
            if self._closed:
                raise StorageUnavailable(f"node {self.name} is closed")
            engine = self._engines.get(timeout_s)
        if engine is None:
            opened = self._open_node(timeout_s)
            with self._open_lock:
                engine = self._engines.setdefault(timeout_s, opened)
            if engine is not opened:
                opened.close()
        return engine

    def abort(self) -> None:
        """Cuts off the calls under way."""
        with self._open_lock:
            engines = list(self._engines.values())
        for engine in engines:
            engine.abort()

    # --- watching ---------------------------------------------------------------------------------

    def ask(self) -> int:
        """Asks for a look that begins from now on; the ticket is for :meth:`wait`."""
        with self._changed:
            self._asked = self._begun + 1
            self._changed.notify_all()
            return self._asked

    def wait(self, ticket: int, slow_s: float = SLOW_S) -> None:
        """Waits until that look is done; not for a node whose look has taken ``slow_s``, or that is
        away."""

        def waited_enough() -> bool:
            slow = self._begun > self._done and time.monotonic() - self._began_at_s > slow_s
            if not self._watcher.is_alive():  # it is dead, or its process was forked
                return True
            return (
                self._done >= ticket
                or self._closed
                or slow
                or (self.why_not is not None and self.breaker.is_open)
            )

        with self._changed:
            while not waited_enough():
                self._changed.wait(SLOW_S)

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._asked > self._begun, _IDLE_LOOK_S
                )
                if self._closed:
                    return
                self._begun = max(self._begun + 1, self._asked)
                self._began_at_s = time.monotonic()
            try:
                if self.breaker.allows():
                    self._look()
            finally:
                with self._changed:
                    self._done = self._begun
                    self._changed.notify_all()

    def _look(self) -> None:
        try:
            engine = self._engine(WATCH_TIMEOUT_S)
            view = self.view
            look = engine.look(ROLE_KEY, self._token if view is not None else None)
            role = decode_role(look.entry)
        except Unavailable as error:
            self.breaker.failed()
            self.why_not = str(error)
            self.damaged = None
        except CellfeedError as error:
            # The node answers, but its storage is not ours or is damaged: it takes no part.
            self.view = self.damaged = None
            self.why_not = str(error)
            self.refused = error
        except Exception as error:
            # A defect, or bytes that no server of ours sends: the node counts as away until a look
            # is answered.
            self.breaker.failed()
            self.why_not = f"{type(error).__name__}: {error}"
            self._failing.warn(
                "the look at node %s failed by a defect: %r", self.name, error, exc_info=error
            )
        else:
            self._token = look.token
            foreign = self.on_role(role) if role is not None else None
            self.is_foreign = foreign is not None
            if foreign is not None:
                self.refuse(foreign)
                return
            self.view = NodeView(
                role,
                view.heads if view is not None and look.heads is None else look.heads or {},
                look.confirmed,
                None if view is None or look.changed is None else (view.heads, look.changed),
            )
            self.heard_at_s = self._began_at_s
            self.breaker.succeeded()
            self.why_not = self.refused = None

    def refuse(self, reason: str) -> None:
        """The node is another cluster's: it takes no part until its looks say otherwise."""
        self.is_foreign, self.view, self.why_not, self.refused = (
            True,
            None,
            reason,
            ProtectData(f"node {self.name}: {reason}"),
        )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._watcher.join()
        with self._open_lock:
            engines, self._engines = list(self._engines.values()), {}
        for engine in engines:
            engine.close()
