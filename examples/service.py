"""A service that keeps its trips in cellfeed: `POST /trips` writes one, `GET /trips/<id>` reads it
back with all that other programs have written about it.

The client chooses the trip's id, so it can repeat a request that was not answered: the same trip
again is the same cell. Another body under that id is refused.
"""

from __future__ import annotations

import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

from cellfeed import connect
from cellfeed.store.errors import CellConflict, CellfeedError, InvalidRequest

PORT, STORE = int(sys.argv[1]), connect(sys.argv[2])


class Trips(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        try:
            trip = json.loads(self.rfile.read(int(self.headers["content-length"])))
            row_key = UUID(trip.pop("id"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self.answer(HTTPStatus.BAD_REQUEST, {"error": f"not a trip with an id: {error}"})
            return
        try:
            put = STORE.put_cell(row_key, "BASE", 1, trip)
        except CellConflict as error:
            self.answer(HTTPStatus.CONFLICT, {"error": str(error)})
        except InvalidRequest as error:
            self.answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except CellfeedError as error:  # not written, or not known: the client asks again
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)})
        else:
            self.answer(HTTPStatus.CREATED, {"shard": put.shard, "added_id": put.added_id})

    def do_GET(self) -> None:
        try:
            row = STORE.get_row(UUID(self.path.removeprefix("/trips/")))
        except ValueError:
            row = {}
        if "BASE" in row:
            self.answer(HTTPStatus.OK, {column: cell.body for column, cell in row.items()})
        else:
            self.answer(HTTPStatus.NOT_FOUND, {"error": f"no trip at {self.path}"})

    def answer(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", PORT), Trips) as server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)
