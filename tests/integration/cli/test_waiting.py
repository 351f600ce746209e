"""Commands that wait, and output that is too wide: the lines that a person sees."""

from __future__ import annotations

import os
import pty
import re
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.cli_instance import CELLFEED, ROOT, cellfeed, running

pytestmark = [pytest.mark.integration]


@pytest.fixture
def dead_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield int(listening.getsockname()[1])


def first_line_of(words: list[str]) -> tuple[str, float]:
    began_s = time.monotonic()
    process = subprocess.Popen(
        [*CELLFEED, *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        return process.stderr.readline(), time.monotonic() - began_s
    finally:
        process.kill()
        process.communicate()


def test_a_put_to_a_dead_port_names_the_awaited_address_after_a_second(dead_port: int) -> None:
    url = f"http://127.0.0.1:{dead_port}"
    line, seconds = first_line_of(["put", str(uuid4()), "BASE", "1", "{}", "--url", url])
    assert line.startswith(f"waiting: 127.0.0.1:{dead_port}: no connection: ")
    assert "it is tried for 20 s in all" in line
    assert 1.0 <= seconds < 15.0, "well before the end"


def test_a_put_to_a_silent_port_also_names_the_awaited_address(silent_port: int) -> None:
    url = f"http://127.0.0.1:{silent_port}"
    line, _ = first_line_of(["get", str(uuid4()), "--url", url])
    assert line.startswith(f"waiting: no answer yet from 127.0.0.1:{silent_port}")


def test_verify_against_a_dead_gateway_is_one_line(tmp_path: Path, dead_port: int) -> None:
    with running(tmp_path) as run_dir:
        address = f"127.0.0.1:{dead_port}"
        began_s = time.monotonic()
        said = cellfeed("verify", "--gateway", address, "--run-dir", str(run_dir))
        assert said.returncode == 1
        assert said.stderr.count("\n") == 1, said.stderr
        assert address in said.stderr
        assert time.monotonic() - began_s < 9
        for wrong in ("nowhere", "127.0.0.1:x", ":1", "127.0.0.1:70000"):
            said = cellfeed("verify", "--gateway", wrong, "--run-dir", str(run_dir))
            assert (said.returncode, said.stderr.count("\n")) == (2, 1), said.stderr
            assert "HOST:PORT" in said.stderr


def test_tail_shows_the_newest_cells_of_all_shards(tmp_path: Path) -> None:
    with running(tmp_path) as run_dir:
        for number in range(14):
            put = cellfeed(
                "put", str(uuid4()), "BASE", "1", f'{{"n":{number}}}', "--run-dir", str(run_dir)
            )
            assert put.returncode == 0, put.stderr
        said = cellfeed("tail", "--last", "10", "--seconds", "0.5", "--run-dir", str(run_dir))
        assert [f'"n":{number}' in line for number, line in enumerate(said.stdout.splitlines(), 4)]
        assert len(said.stdout.splitlines()) == 10
        wrong = cellfeed("tail", "--shard", "99", "--seconds", "0.5", "--run-dir", str(run_dir))
        assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
        assert "shard 99" in wrong.stderr


def test_rows_of_a_query_fit_the_terminal() -> None:
    program = (
        "from cellfeed.cli.output import print_rows;"
        "print_rows([{'n': 1, 'body': 'x' * 500}, {'n': 2, 'body': 'y'}]);"
        "print_rows([{f'field{n}': 'z' * 90 for n in range(20)}])"
    )
    said = _on_a_terminal(["-c", program], columns=60).splitlines()
    assert max(map(len, said)) <= 60
    assert said[0].split() == ["n", "body"]
    assert said[1].startswith("1  xxx")
    assert said[1].rstrip().endswith("…")
    assert len(said) == 3 + 20, "a record has a line for each value"
    piped = subprocess.run(
        [CELLFEED[0], "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "x" * 500 in piped, "nothing is cut off for another program"


def _on_a_terminal(words: list[str], columns: int) -> str:
    mine, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [CELLFEED[0], *words],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"}
        | {"TERM": "xterm"},
    )
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(mine, 65_536):
            said += piece
    except OSError:
        pass  # the terminal is closed
    os.close(mine)
    assert process.wait(30) == 0, said
    return re.sub(r"\x1b\[[0-9;]*m", "", said.decode()).replace("\r", "")
