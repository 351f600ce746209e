"""A TCP proxy that makes the faults of a network, for tests: cuts, silence, delay, and cuts at a
chosen byte or at a chosen statement.

Two threads per connection pass bytes on, one per direction. Everything that is done to a connection
is counted, so a test can prove that its fault happened. A cut is a reset (RST), as of a host that
went away; both sides see it at once.

Statements are recognised in MySQL's packets (``on_query``): the only protocol knowledge here is the
framing, COM_QUERY, and where the answers to a packet end. Sources: the MySQL client/server
protocol, "Packets", "COM_QUERY", "OK_Packet" and "Text Resultset".
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

from tests.support.mysql_packets import AnswerEnd, CommandReader, is_query_with

_PIECE_BYTES: Final = 1 << 16
_CONNECT_TIMEOUT_S: Final = 5.0
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class Direction(Enum):
    """Which way bytes go."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class Action(Enum):
    """The fate of a statement that a rule recognises."""

    CUT_BEFORE = "the server never hears of it: cut instead of passing it on"
    CUT_AFTER = "the server runs it and answers; the answer is thrown away and the connection cut"
    CUT_BLIND = "passed on, and cut at once, whether or not the server is done"
    HOLD_QUERY = "kept back until released"
    HOLD_ANSWER = "passed on; its whole answer is kept back until released"


@dataclass
class Rule:
    """The act on commands that contain ``text``. ``times``: how often it acts; None for
    always."""

    text: bytes
    action: Action
    times: int | None = 1
    count: int = 0
    """How often it has acted."""
    happened: threading.Event = field(default_factory=threading.Event)
    """Set when it has acted (something is held), or is about to (the cut is next): anybody who
    feels the cut finds it set."""
    _released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Lets the held bytes go, and holds nothing any longer."""
        self._released.set()

    def _wait_for_release(self, ended: threading.Event) -> None:
        while not self._released.wait(0.02) and not ended.is_set():
            pass


class TcpProxy:
    """Forwards to ``target_port`` on loopback. Use in a ``with``, or call ``close``. Any number of
    connections and callers.

    ``mysql``: the clients speak MySQL, so that ``on_query`` can recognise their statements; bytes
    are then passed on a whole command at a time. ``at``: where it listens.
    """

    def __init__(
        self, target_port: int, *, mysql: bool = False, at: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        self.target_port = target_port
        self._mysql = mysql
        self.connections = 0
        """Accepted so far."""
        self.cuts = 0
        """Connections reset by this proxy so far."""
        self.passed: dict[Direction, int] = dict.fromkeys(Direction, 0)
        """Bytes passed on so far."""
        self.dropped: dict[Direction, int] = dict.fromkeys(Direction, 0)
        """Bytes taken and thrown away so far."""
        self._lock = threading.Lock()
        self._open: set[_Connection] = set()
        self._rules: list[Rule] = []
        self.held: dict[Direction, int] = dict.fromkeys(Direction, 0)
        """Bytes so far that were kept back by a stall or a silence."""
        self._flowing = {direction: threading.Event() for direction in Direction}
        self.resume()
        self._delay_s = 0.0
        self._accepting = True
        self._left: dict[Direction, int | None] = dict.fromkeys(Direction, None)
        self._closed = threading.Event()
        self._listener = socket.create_server(at)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    # --- faults -----------------------------------------------------------------------------------

    def cut(self) -> int:
        """Resets every connection that is open now; later ones go through. Returns how many there
        were."""
        with self._lock:
            open_now = list(self._open)
        return sum(connection.cut() for connection in open_now)

    def down(self) -> int:
        """Cuts all, and refuses new connections until ``up``."""
        self._accepting = False
        return self.cut()

    def up(self) -> None:
        """Takes connections again."""
        self._accepting = True

    def stall(self) -> None:
        """Nothing passes in either direction until ``resume``; connections stay open, new ones too.
        As of a host that is paused."""
        for flowing in self._flowing.values():
            flowing.clear()

    def silence(self, direction: Direction) -> None:
        """Nothing passes one way until ``resume``, not even the end of a connection; the other way
        is as it was. As of a network that loses packets one way: bytes that were sent meanwhile
        arrive when it heals, also those of a client that has given the connection up."""
        self._flowing[direction].clear()

    def resume(self) -> None:
        """Lets everything flow that was taken meanwhile."""
        for flowing in self._flowing.values():
            flowing.set()

    def delay(self, seconds: float) -> None:
        """Every piece of up to 64 KiB is passed on so much later, each way: a round trip takes
        twice as long. 0 ends it."""
        self._delay_s = seconds

    def drop_after(self, count: int, direction: Direction) -> None:
        """Cuts the connection on which the ``count``-th byte from now in ``direction`` has been
        passed; the bytes that follow it are thrown away. Acts once."""
        with self._lock:
            self._left[direction] = count

    def on_query(self, text: str, action: Action, times: int | None = 1) -> Rule:
        """Acts on the next ``times`` commands whose statements contain ``text`` as words of its
        own, on any connection. The rule tells whether it has."""
        if not self._mysql:
            raise ValueError("on_query needs TcpProxy(…, mysql=True)")
        rule = Rule(text.encode(), action, times)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Ends every fault; the waiting bytes are let go. Connections that are open stay."""
        with self._lock:
            rules, self._rules = self._rules, []
            self._left = dict.fromkeys(Direction, None)
        for rule in rules:
            rule.release()
        self.delay(0)
        self.up()
        self.resume()

    @property
    def open_now(self) -> int:
        """Connections whose ends this proxy has not closed."""
        with self._lock:
            return len(self._open)

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cuts all and ends every thread."""
        self._closed.set()
        self.clear()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        while True:
            with self._lock:
                connection = next(iter(self._open), None)
            if connection is None:
                return
            connection.cut()
            connection.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._accepting:
                _reset(near)
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target_port), _CONNECT_TIMEOUT_S)
            except OSError:
                _reset(near)
                continue
            far.settimeout(None)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(self, near, far)
            with self._lock:
                self.connections += 1
                self._open.add(connection)
            connection.start()

    # --- what connections ask ---------------------------------------------------------------------

    def _gate(self, ended: threading.Event, direction: Direction, count: int) -> None:
        """Waits out a delay, a stall and a silence, for ``count`` bytes."""
        if self._delay_s and count:
            time.sleep(self._delay_s)
        flowing = self._flowing[direction]
        if not flowing.is_set():
            with self._lock:
                self.held[direction] += count
        while not flowing.wait(0.02) and not ended.is_set():
            pass

    def _allowed(self, count: int, direction: Direction) -> tuple[int, bool]:
        """How many of ``count`` bytes may pass, and whether the connection is to be cut behind
        them."""
        with self._lock:
            left = self._left[direction]
            cut = left is not None and left <= count
            allowed = left if left is not None and cut else count
            if left is not None:
                self._left[direction] = None if cut else left - count
            self.passed[direction] += allowed
            self.dropped[direction] += count - allowed
        return allowed, cut

    def _drop(self, count: int, direction: Direction) -> None:
        with self._lock:
            self.dropped[direction] += count

    def _rule_for(self, command: bytes) -> Rule | None:
        with self._lock:
            for rule in self._rules:
                if (rule.times is None or rule.count < rule.times) and is_query_with(
                    command, rule.text
                ):
                    rule.count += 1
                    return rule
        return None

    def _ends(self, *, was_cut: bool) -> None:
        # Before its sides are closed: anybody who feels the cut finds it counted.
        with self._lock:
            self.cuts += was_cut

    def _gone(self, connection: _Connection) -> None:
        with self._lock:
            self._open.discard(connection)


class _Connection:
    """One client's connection and the proxy's own to the server."""

    def __init__(self, proxy: TcpProxy, near: socket.socket, far: socket.socket) -> None:
        self._proxy, self._near, self._far = proxy, near, far
        self._ended = threading.Event()
        self._end_lock = threading.Lock()
        self._commands = CommandReader()
        self._answer: tuple[Rule, AnswerEnd] | None = None
        """The rule that waits for the end of an answer, and the parser that recognises it."""
        self._threads = [
            threading.Thread(target=self._to_server, name="proxy-to-server", daemon=True),
            threading.Thread(target=self._to_client, name="proxy-to-client", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def cut(self) -> bool:
        """Resets both sides; False when it had ended before."""
        return self._end(was_cut=True)

    def _end(self, *, was_cut: bool) -> bool:
        with self._end_lock:
            if self._ended.is_set():
                return False
            self._ended.set()
        self._proxy._ends(was_cut=was_cut)
        for side in (self._near, self._far):
            _reset(side) if was_cut else _finish(side)
        self._proxy._gone(self)
        return True

    def _to_server(self) -> None:
        while (piece := self._received(self._near)) is not None:
            self._proxy._gate(self._ended, Direction.TO_SERVER, len(piece))
            # Commands are followed from the first byte on, so that a rule may come at any time.
            for command in self._commands.feed(piece) if self._proxy._mysql else [piece]:
                if not self._passed_on(command, self._proxy._rule_for(command)):
                    return
        self._proxy._gate(self._ended, Direction.TO_SERVER, 0)
        self._end(was_cut=False)

    def _passed_on(self, command: bytes, rule: Rule | None) -> bool:
        """False when the connection has ended."""
        if rule is None:
            return self._send(self._far, command, Direction.TO_SERVER)
        if rule.action is Action.CUT_BEFORE:
            self._proxy._drop(len(command), Direction.TO_SERVER)
            rule.happened.set()
            self.cut()
            return False
        if rule.action is Action.HOLD_QUERY:
            rule.happened.set()
            rule._wait_for_release(self._ended)
            return self._send(self._far, command, Direction.TO_SERVER)
        if rule.action is not Action.CUT_BLIND:
            self._answer = (rule, AnswerEnd())
        sent = self._send(self._far, command, Direction.TO_SERVER)
        if rule.action is Action.CUT_BLIND:
            rule.happened.set()
            self.cut()
            return False
        return sent

    def _to_client(self) -> None:
        held = b""
        while (piece := self._received(self._far)) is not None:
            self._proxy._gate(self._ended, Direction.TO_CLIENT, len(piece))
            if self._answer is not None:
                rule, end = self._answer
                held += piece
                if not end.feed(piece):
                    continue
                self._answer = None
                if rule.action is Action.CUT_AFTER:
                    self._proxy._drop(len(held), Direction.TO_CLIENT)
                    rule.happened.set()
                    self.cut()
                    return
                rule.happened.set()
                rule._wait_for_release(self._ended)
                piece, held = held, b""
            if not self._send(self._near, piece, Direction.TO_CLIENT):
                return
        self._proxy._gate(self._ended, Direction.TO_CLIENT, 0)
        self._end(was_cut=False)

    def _received(self, side: socket.socket) -> bytes | None:
        try:
            return side.recv(_PIECE_BYTES) or None
        except OSError:
            return None

    def _send(self, side: socket.socket, piece: bytes, direction: Direction) -> bool:
        if self._ended.is_set():
            # Bytes that waited when the connection was cut are not let through by the cut, although
            # the sides may not be closed yet.
            self._proxy._drop(len(piece), direction)
            return False
        allowed, to_be_cut = self._proxy._allowed(len(piece), direction)
        try:
            side.sendall(piece[:allowed])
        except OSError:
            self._end(was_cut=False)
            return False
        if to_be_cut:
            self.cut()
        return not to_be_cut


def _reset(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    _close(side)


def _finish(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_WR)
    _close(side)


def _close(side: socket.socket) -> None:
    # A thread that waits in recv is woken by shutdown, not by close.
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RD)
    side.close()
