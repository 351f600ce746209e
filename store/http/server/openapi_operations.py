"""The operations of the OpenAPI document that Litestar does not derive, and the errors of all."""

from __future__ import annotations

from typing import Any, Final

from cellfeed.store.followed import BOOKMARK_S
from cellfeed.store.http.messages import JSON, MSGPACK, NDJSON

REF: Final = "#/components/schemas/{name}"


def _content(name: str, *media_types: str) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": REF.format(name=name)}} for media_type in media_types}


def body(name: str) -> dict[str, Any]:
    return {"required": True, "content": _content(name, JSON, MSGPACK)}


def put_one() -> dict[str, Any]:
    return {
        "tags": ["cells"],
        "summary": "Write one cell",
        "description": (
            "200 with outcome stored or exists. 409 conflict when the key is stored with another"
            " body; 504 outcome_unknown is the only answer after which the cell may have been"
            " written."
        ),
        "operationId": "putCell",
        "parameters": [_DATASTORE],
        "requestBody": body("PutMessage"),
        "responses": {
            "200": {
                "description": "Acknowledged: on disk",
                "content": _content("PutResultMessage", JSON, MSGPACK),
            }
        },
    }


def put_many() -> dict[str, Any]:
    return {
        "tags": ["batches"],
        "summary": "Write many cells",
        "description": (
            "200 when the call was carried out, with a result per cell in order, also for cells"
            " that failed. A call of JSON or MessagePack is one transaction; NDJSON (one"
            " cell a line) is a"
            " stream of any length, answered line by line as it comes."
        ),
        "operationId": "putCells",
        "parameters": [_DATASTORE],
        "requestBody": {
            "required": True,
            "content": {**_content("PutsMessage", JSON, MSGPACK), **_content("PutMessage", NDJSON)},
        },
        "responses": {
            "200": {
                "description": "Carried out",
                "content": {
                    **_content("PutResultsMessage", JSON, MSGPACK),
                    **_content("PutResultMessage", NDJSON),
                },
            }
        },
    }


def query_index() -> dict[str, Any]:
    return {
        "tags": ["indexes"],
        "summary": "Rows by the fields of their cells",
        "description": (
            "Rows in the order asked for, and the cursor of the next page. 503 while the index is"
            " being built, or has not come to wait_for in time."
        ),
        "operationId": "queryIndex",
        "parameters": [_DATASTORE, _INDEX],
        "requestBody": body("IndexQueryMessage"),
        "responses": {
            "200": {
                "description": "The rows found",
                "content": _content("IndexPageMessage", JSON, MSGPACK),
            }
        },
    }


def follow() -> dict[str, Any]:
    return {
        "tags": ["logs"],
        "summary": "Follow the logs",
        "description": (
            "An answer without end: a line (NDJSON) for each cell as it comes, and a bookmark at"
            f" least every {BOOKMARK_S:g} s. Keep the places passed as a token, and ask again with"
            " it after any end. 410 trimmed names the log's start; 421 other_history is for a token"
            " of another store."
        ),
        "operationId": "follow",
        "parameters": [_DATASTORE],
        "requestBody": body("FollowMessage"),
        "responses": {
            "200": {"description": "Followed", "content": _content("FollowLine", NDJSON)},
        },
    }


def wakeups() -> dict[str, Any]:
    return {
        "tags": ["logs"],
        "summary": "Be woken by this worker's commits",
        "description": (
            "Between processes of several hosts: an answer without end, with a line (NDJSON) behind"
            " commits. Each is a hint to look at the logs, and no proof of anything. 404 where"
            " another worker was meant, or this one is not advertised."
        ),
        "operationId": "wakeups",
        "parameters": [_DATASTORE],
        "requestBody": body("WakeupsMessage"),
        "responses": {
            "200": {"description": "Woken", "content": _content("WakeupLine", NDJSON)},
        },
    }


_INDEX: Final = {
    "name": "index",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The index, as its definition's `table` names it.",
}

_DATASTORE: Final = {
    "name": "datastore",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The datastore's name.",
}


def add_errors(path: str, operation: dict[str, Any]) -> None:
    responses: dict[str, Any] = operation["responses"]
    errors = {"content": _content("ErrorMessage", JSON, MSGPACK)}
    if path in ("/livez", "/health/live", "/metrics"):
        responses.pop("400", None)
        return
    if path.startswith(("/readyz", "/health")):
        responses["503"] = {"description": "Not ready", "content": _content("HealthMessage", JSON)}
        return
    for answer in responses.values():
        answer["content"].update(
            {MSGPACK: answer["content"][JSON]} if JSON in answer.get("content", {}) else {}
        )
    responses["400"] = {
        "description": "The request breaks a rule, which the message names",
        **errors,
    }
    responses["404"] = {"description": "No such cell, shard or datastore", **errors}
    responses["429"] = {"description": "Too much is waiting; nothing was written", **errors}
    responses["503"] = {"description": "The storage does not answer; nothing was written", **errors}
    if path.startswith("/v1/{datastore}/shards/"):
        responses["410"] = {
            "description": (
                "The log was asked for from below its start: the cells there were trimmed"
            ),
            **errors,
        }
    if path == "/v1/{datastore}/follow":
        responses["410"] = {
            "description": "Cells behind the token were trimmed; the message names the log's start",
            **errors,
        }
    if path in ("/v1/{datastore}/wait", "/v1/{datastore}/follow"):
        responses["421"] = {"description": "The token is of another history", **errors}
    if path.startswith("/v1/{datastore}/rows/"):
        responses["504"] = {"description": "It may be done in part; repeat it", **errors}
    if "requestBody" in operation:
        responses["413"] = {"description": "The body is too large", **errors}
        responses["415"] = {"description": "The Content-Type is not read here", **errors}
    if operation.get("operationId") in ("putCell", "putCells"):
        responses["409"] = {"description": "Stored already with another body", **errors}
        responses["410"] = {
            "description": "The row was erased: nothing was written, and nothing will be",
            **errors,
        }
        responses["504"] = {
            "description": "Not known whether it was written; put the same again to learn",
            **errors,
        }
