"""The OpenAPI document as a page that reads without any script or network."""

from __future__ import annotations

import html
import json
from typing import Any


def page(document: dict[str, Any]) -> str:
    """The document as one HTML page: every route with its parameters, bodies and answers."""
    rows = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            rows.append(
                f"<h2><code>{method.upper()}"
                f" {html.escape(path)}</code></h2><p>{html.escape(operation.get('summary', ''))}. "
                f"{html.escape(operation.get('description', ''))}</p>"
                f"<ul>{_parameters(operation)}</ul>"
            )
    schemas = html.escape(json.dumps(document["components"]["schemas"], indent=1))
    title = html.escape(document["info"]["title"])
    return (
        '<!doctype html><html lang="en"><meta'
        f' charset="utf-8"><title>{title}</title><style>body{{font:15px/1.5'
        " sans-serif;max-width:60rem;"
        f"margin:2rem auto;padding:0"
        f" 1rem}}code,pre{{background:#f4f4f4}}h2{{font-size:1rem;border-top:1px solid"
        f" #ddd;padding-top:1rem}}</style>"
        f"<h1>{title}"
        f" {html.escape(document['info']['version'])}</h1>"
        f"<p>{html.escape(document['info']['description'])}</p>"
        '<p>The document for tools: <a href="/schema/openapi.json">/schema/openapi.json</a>'
        f" (OpenAPI {document['openapi']}).</p>"
        f"{''.join(rows)}<h2>Messages</h2><pre>{schemas}</pre></html>"
    )


def _parameters(operation: dict[str, Any]) -> str:
    lines = []
    for item in operation.get("parameters", ()):
        needed = "" if item.get("required") else ", optional"
        lines.append(
            f"<li><code>{item['name']}</code> ({item['in']}{needed})"
            f" {html.escape(item.get('description') or '')}</li>"
        )
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        lines.append(f"<li>body: <code>{media_type}</code>, {_schema_name(content)}</li>")
    for status, answer in operation["responses"].items():
        for media_type, content in answer.get("content", {}).items():
            lines.append(f"<li>{status}: <code>{media_type}</code>, {_schema_name(content)}</li>")
    return "".join(lines)


def _schema_name(content: dict[str, Any]) -> str:
    return html.escape(str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2] or "text")
