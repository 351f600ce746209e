"""A server ends at once, however seldom it looks whether it has to."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cellfeed.store.server_end import end_serving


def test_a_server_that_waits_for_a_connection_ends_at_once_and_takes_no_more() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    serving = threading.Thread(target=server.serve_forever, args=(3600.0,), daemon=True)
    serving.start()
    ending = threading.Thread(target=end_serving, args=(server,), daemon=True)
    ending.start()
    for each in (ending, serving):
        each.join(30)
        assert not each.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.server_port))
