"""Ends a server of the standard library at once.

``shutdown()`` alone waits until the server looks whether it has to end, which is every half second.
"""

from __future__ import annotations

import socket
import socketserver
from contextlib import suppress


def end_serving(server: socketserver.TCPServer) -> None:
    """Ends ``serve_forever`` of another thread, and closes the listening socket. Connections
    that are served are left to their threads."""
    with suppress(OSError):  # systems where a socket that listens cannot be shut down
        server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
    server.shutdown()
    server.server_close()
