"""Schemas: data that programs outside cellfeed read too, and a thin loader for it."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def avro_text(name: str) -> str:
    """The text of an Avro schema, for example ``cell_envelope``. Raises FileNotFoundError for an
    unknown name."""
    return (
        resources.files("cellfeed.schemas")
        .joinpath("avro", f"{name}.avsc")
        .read_text(encoding="utf-8")
    )


def avro_names() -> list[str]:
    """The names of all Avro schemas that are shipped, sorted."""
    return sorted(
        file.name.removesuffix(".avsc")
        for file in resources.files("cellfeed.schemas").joinpath("avro").iterdir()
        if file.name.endswith(".avsc")
    )


def load_avro(name: str) -> dict[str, Any]:
    """An Avro schema as Python objects; a fresh copy for each caller."""
    schema: dict[str, Any] = json.loads(avro_text(name))
    return schema


def load_json_schema(name: str) -> dict[str, Any]:
    """A JSON Schema as Python objects, for example ``config``."""
    schema: dict[str, Any] = json.loads(
        resources.files("cellfeed.schemas")
        .joinpath("json", f"{name}.schema.json")
        .read_text(encoding="utf-8")
    )
    return schema
