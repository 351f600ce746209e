"""Keys of a configuration that no type has, each with the key that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from cellfeed.config.json_schema import config_schema

Schema = Mapping[str, Any]


def unknown_keys(raw: object) -> list[str]:
    """One sentence for each unknown key, in the order of the file."""
    schema = config_schema()
    types: Mapping[str, Schema] = schema["$defs"]
    return list(_unknown(raw, schema, types, ""))


def _unknown(value: object, schema: Schema, types: Mapping[str, Schema], at: str) -> Iterator[str]:
    schema = _meant(value, schema, types)
    if isinstance(value, dict):
        known: Mapping[str, Schema] = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for key, child in value.items():
            path = f"{at}.{key}" if at else str(key)
            if key in known:
                yield from _unknown(child, known[key], types, path)
            elif others is False:
                yield _sentence(str(key), at, list(known), types)
            elif isinstance(others, dict):
                yield from _unknown(child, others, types, path)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _unknown(child, schema.get("items", {}), types, f"{at}[{index}]")


def _meant(value: object, schema: Schema, types: Mapping[str, Schema]) -> Schema:
    """The schema of an object or a list: references followed, and of alternatives the one whose
    ``kind`` the value has."""
    if "$ref" in schema:
        return _meant(value, types[str(schema["$ref"]).rpartition("/")[2]], types)
    if "anyOf" in schema:
        alternatives = [_meant(value, each, types) for each in schema["anyOf"]]
        kind = "object" if isinstance(value, dict) else "array"
        fitting = [each for each in alternatives if each.get("type") == kind]
        tagged = [each for each in fitting if isinstance(value, dict) and _has_tag(value, each)]
        return (tagged or (fitting if len(fitting) == 1 else None) or [{}])[0]
    return schema


def _has_tag(value: Mapping[Any, Any], schema: Schema) -> bool:
    tag = schema.get("properties", {}).get("kind", {})
    return "kind" in value and value["kind"] in tag.get("enum", [tag.get("const")])


def _sentence(key: str, at: str, known: list[str], types: Mapping[str, Schema]) -> str:
    where = f"{at} has" if at else "the file has"
    said = f"{where} an unknown key {key!r}"
    if near := difflib.get_close_matches(key, known, 1):
        return f"{said}: did you mean {near[0]!r}?"
    if homes := [name for name, each in types.items() if key in each.get("properties", {})]:
        said += f" (it is one of {', '.join(home.removesuffix('Config') for home in homes)})"
    return f"{said}; known are {', '.join(known)}"
