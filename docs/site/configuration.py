"""Every section of the configuration file, from the JSON Schema of the types that read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cellfeed.config.json_schema import config_schema
from docs.site.markdown import code, prose, table

Schema = Mapping[str, Any]


def configuration() -> Iterator[str]:
    """Markdown, a heading for each type of the file, the whole file first."""
    for name, schema in config_schema()["$defs"].items():
        yield f"## {name}\n"
        yield f"{prose(schema.get('description', ''))}\n"
        needed = schema.get("required", [])
        yield from table(
            ("field", "values", "without it"),
            (
                (code(field), values(value), _default(value, field in needed))
                for field, value in schema["properties"].items()
            ),
        )


def _default(schema: Schema, needed: bool) -> str:
    if needed:
        return "needed"
    if "default" not in schema:
        return ""
    # The defaults of a whole section stand with its fields.
    return "its defaults" if "$ref" in schema else code(json.dumps(schema["default"]))


def values(schema: Schema) -> str:
    """The values that the schema takes, in words."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(values(each) for each in schema["anyOf"])
    kind = str(schema.get("type", "anything"))
    if "prefixItems" in schema:
        return f"list of {', then '.join(values(each) for each in schema['prefixItems'])}"
    if kind == "array":
        kind = f"list of {values(schema.get('items', {}))}"
    elif kind == "object":
        kind = f"mapping to {values(schema.get('additionalProperties') or {})}"
    return kind + "".join(_limits(schema))


def _limits(schema: Schema) -> Iterator[str]:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
        "minLength": "characters at least",
        "maxLength": "characters at most",
        "minItems": "items at least",
        "maxItems": "items at most",
    }
    for key, word in words.items():
        if key in schema:
            yield f", {word} {schema[key]:,}"
    if "pattern" in schema:
        yield f", {code(schema['pattern'])}"
