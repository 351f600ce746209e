"""The tests' own proxy does as it says: every fault is made where it was asked for, counted, and
ended."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection
from pymysql.constants import CLIENT

from tests.support import tcp_proxy
from tests.support.local_mariadb import MariaDB
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def echo() -> Iterator[TcpProxy]:
    """A proxy before a server that echoes every byte."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(side: socket.socket) -> None:
        with side, contextlib.suppress(OSError):
            while piece := side.recv(1 << 16):
                side.sendall(piece)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    with TcpProxy(listener.getsockname()[1]) as proxy:
        yield proxy
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def client_of(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 5)


def received(side: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (piece := side.recv(count - len(found))):
        found += piece
    return found


def test_bytes_pass_unchanged_and_are_counted(echo: TcpProxy) -> None:
    sent = bytes(range(256)) * 2_000
    with client_of(echo) as client:
        threading.Thread(target=client.sendall, args=(sent,)).start()
        assert received(client, len(sent)) == sent
    assert echo.passed == {Direction.TO_SERVER: len(sent), Direction.TO_CLIENT: len(sent)}
    assert (echo.connections, echo.cuts) == (1, 0)


def test_a_cut_resets_open_connections_and_lets_new_ones_through(echo: TcpProxy) -> None:
    with client_of(echo) as first, client_of(echo) as second:
        for client in (first, second):
            client.sendall(b"hello")
            assert received(client, 5) == b"hello"
        assert echo.cut() == 2
        for client in (first, second):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
    assert echo.cut() == 0
    assert echo.cuts == 2
    with client_of(echo) as third:
        third.sendall(b"x")
        assert received(third, 1) == b"x"


def _use(proxy: TcpProxy) -> None:
    with client_of(proxy) as client:
        client.sendall(b"x")
        client.recv(1)


def test_down_refuses_until_up(echo: TcpProxy) -> None:
    echo.down()
    with pytest.raises(ConnectionResetError):
        _use(echo)
    echo.up()
    with client_of(echo) as client:
        client.sendall(b"x")
        assert received(client, 1) == b"x"
    assert echo.connections == 1


def test_a_stall_keeps_connections_open_and_loses_nothing(echo: TcpProxy) -> None:
    with client_of(echo) as client:
        echo.stall()
        client.sendall(b"late")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        assert echo.passed[Direction.TO_CLIENT] == 0
        echo.resume()
        client.settimeout(5)
        assert received(client, 4) == b"late"


@pytest.mark.parametrize("direction", list(Direction))
def test_a_silence_keeps_back_one_direction_and_loses_nothing(
    echo: TcpProxy, direction: Direction
) -> None:
    with client_of(echo) as client:
        echo.silence(direction)
        client.sendall(b"late")
        wait_until(lambda: echo.held[direction] == 4, "the bytes are kept back")
        assert echo.passed == {
            Direction.TO_SERVER: 0 if direction is Direction.TO_SERVER else 4,
            Direction.TO_CLIENT: 0,
        }
        echo.resume()
        assert received(client, 4) == b"late"


def test_bytes_sent_into_a_silence_arrive_although_the_client_has_gone(echo: TcpProxy) -> None:
    echo.silence(Direction.TO_SERVER)
    with client_of(echo) as client:
        client.sendall(b"late")
        wait_until(lambda: echo.held[Direction.TO_SERVER] == 4, "the bytes are kept back")
    assert echo.open_now == 1
    echo.resume()
    wait_until(
        lambda: echo.passed[Direction.TO_SERVER] == 4 and echo.open_now == 0,
        "the bytes and then the end have arrived",
    )


def test_a_delay_applies_to_both_directions(echo: TcpProxy) -> None:
    with client_of(echo) as client:
        echo.delay(0.1)
        began_s = time.monotonic()
        client.sendall(b"x")
        assert received(client, 1) == b"x"
        assert time.monotonic() - began_s >= 0.2


@pytest.mark.parametrize("direction", list(Direction))
def test_a_connection_is_cut_behind_the_chosen_byte(echo: TcpProxy, direction: Direction) -> None:
    echo.drop_after(7, direction)
    with client_of(echo) as client, contextlib.suppress(ConnectionResetError):
        client.sendall(b"0123456789")
        received(client, 10)
    deadline_s = time.monotonic() + 5
    while not echo.cuts and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert echo.cuts == 1
    assert (echo.passed[direction], echo.dropped[direction]) == (7, 3)


# --- statements -----------------------------------------------------------------------------------


@pytest.fixture
def mysql(empty_mariadb: MariaDB) -> Iterator[TcpProxy]:
    with closing(_connect(empty_mariadb.port)) as direct:
        direct.query("CREATE DATABASE t")
        direct.query("CREATE TABLE t.n (n INT PRIMARY KEY, filler MEDIUMBLOB)")
    with TcpProxy(empty_mariadb.port, mysql=True) as proxy:
        yield proxy


def _connect(port: int) -> Connection[Any]:
    return pymysql.connect(
        host="127.0.0.1",
        port=port,
        user="root",
        client_flag=CLIENT.MULTI_STATEMENTS,
        read_timeout=20,
    )


def _numbers(proxy: TcpProxy) -> list[int]:
    with closing(_connect(proxy.target_port)) as direct, direct.cursor() as cursor:
        cursor.execute("SELECT n FROM t.n ORDER BY n")
        return [n for (n,) in cursor.fetchall()]


SCRIPT = "BEGIN; INSERT INTO t.n (n) VALUES (1); SELECT * FROM t.n; COMMIT"


@pytest.mark.parametrize(("action", "written"), [(Action.CUT_BEFORE, []), (Action.CUT_AFTER, [1])])
def test_a_statement_is_cut_before_or_after_the_server_runs_it(
    mysql: TcpProxy, action: Action, written: list[int]
) -> None:
    rule = mysql.on_query("COMMIT", action)
    client = _connect(mysql.port)
    with pytest.raises(pymysql.err.OperationalError) as lost:
        client.query(SCRIPT)
    assert lost.value.args[0] == 2013
    assert rule.happened.is_set()
    assert (rule.count, mysql.cuts) == (1, 1)
    assert _numbers(mysql) == written
    with closing(_connect(mysql.port)) as again:
        again.query("BEGIN; COMMIT")
    assert rule.count == 1


def test_an_answer_is_delayed_while_other_sessions_see_its_commit(mysql: TcpProxy) -> None:
    rule = mysql.on_query("COMMIT", Action.HOLD_ANSWER)
    done = threading.Event()

    def write() -> None:
        with closing(_connect(mysql.port)) as client:
            client.query(SCRIPT)
            for _ in range(3):
                client.next_result()
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert rule.happened.wait(60)
    assert _numbers(mysql) == [1]
    assert not done.is_set()
    rule.release()
    thread.join()
    assert done.is_set()


@pytest.mark.parametrize(
    ("action", "written"), [(Action.HOLD_QUERY, []), (Action.HOLD_ANSWER, [1])]
)
def test_bytes_that_the_proxy_delays_are_dropped_when_their_connection_is_cut(
    mysql: TcpProxy, monkeypatch: pytest.MonkeyPatch, action: Action, written: list[int]
) -> None:
    reset = tcp_proxy._reset

    def slow_reset(side: socket.socket) -> None:
        time.sleep(0.2)  # so that every command that waits to be let through would be
        reset(side)

    monkeypatch.setattr(tcp_proxy, "_reset", slow_reset)
    rule = mysql.on_query("COMMIT", action)
    errors: list[pymysql.err.OperationalError] = []

    def write() -> None:
        with (
            pytest.raises(pymysql.err.OperationalError) as lost,
            closing(_connect(mysql.port)) as client,
        ):
            client.query(SCRIPT)
        errors.append(lost.value)

    thread = threading.Thread(target=write)
    thread.start()
    assert rule.happened.wait(60)
    assert mysql.cut() == 1
    thread.join()
    assert [error.args[0] for error in errors] == [2013]
    assert _numbers(mysql) == written


def test_commits_are_let_through_in_another_order_than_they_arrived(mysql: TcpProxy) -> None:
    first, second = (
        mysql.on_query("COMMIT", Action.HOLD_QUERY),
        mysql.on_query("COMMIT", Action.HOLD_QUERY),
    )

    def write(n: int) -> None:
        with closing(_connect(mysql.port)) as client:
            client.query(f"INSERT INTO t.n (n) VALUES ({n})")
            client.query("COMMIT")

    threads = [threading.Thread(target=write, args=(n,)) for n in (1, 2)]
    threads[0].start()
    assert first.happened.wait(60)
    threads[1].start()
    assert second.happened.wait(60)
    assert _numbers(mysql) == []
    second.release()
    threads[1].join()
    assert _numbers(mysql) == [2]
    first.release()
    threads[0].join()
    assert _numbers(mysql) == [1, 2]


def test_statements_longer_than_a_packet_pass_and_are_recognised(mysql: TcpProxy) -> None:
    filler = "x" * ((1 << 24) + 100)
    with closing(_connect(mysql.port)) as client:
        client.query(f"INSERT INTO t.n VALUES (1, '{filler[: 1 << 23]}'); COMMIT")
        client.next_result()
        with client.cursor() as cursor:
            cursor.execute(f"SELECT LENGTH('{filler}')")
            assert cursor.fetchall() == ((len(filler),),)
    rule = mysql.on_query("COMMIT", Action.CUT_BEFORE)
    with closing(_connect(mysql.port)) as client, pytest.raises(pymysql.err.OperationalError):
        client.query(f"SELECT LENGTH('{filler}'); COMMIT")
    assert rule.happened.is_set()
    assert _numbers(mysql) == [1]
