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
from collections.abc import Callable
from typing import Final, TypeVar

from cellfeed.store.background import SupervisedThread
from cellfeed.store.clusters.model.roles import Role, decode_role
from cellfeed.store.clusters.serving.breaker import Breaker
from cellfeed.store.clusters.serving.node_engine import (
    READ_TIMEOUT_S,
    WATCH_TIMEOUT_S,
    NodeEngine,
    OpenNode,
)
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.clusters.serving.open_engines import OpenEngines
from cellfeed.store.engines.mysql.guard_sql import ROLE_KEY
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    NoMinion,
    ProtectData,
    ShardMoving,
    StorageUnavailable,
    Unavailable,
)
from cellfeed.store.repeated_warnings import RepeatedWarning

_log: Final = logging.getLogger("cellfeed.clusters")

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
        self._engines = OpenEngines(name, open_node)
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
            engine = self._engines.get(timeout_s)
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
        connected_at_s = self._engines.connected_at_s()
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

    def abort(self) -> None:
        """Cuts off the calls under way."""
        self._engines.abort()

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
            engine = self._engines.get(WATCH_TIMEOUT_S)
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
        self.is_foreign, self.view, self.why_not = True, None, reason
        self.refused = ProtectData(f"node {self.name}: {reason}")

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._watcher.join()
        self._engines.close()
