"""Schemas by the names that configurations and commands give them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import cellfeed.schemas
from cellfeed.bridge.typed.body_schema import BodySchema, body_schema
from cellfeed.bridge.typed.declaration import ColumnSchema
from cellfeed.store.errors import InvalidRequest

FILE_SUFFIX: Final = ".avsc"


def declared_schema(declared: ColumnSchema, directory: Path) -> BodySchema:
    """Loads a declared schema. Raises InvalidRequest with the column."""
    try:
        return load_schema(declared.schema, directory)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"schema {declared.schema} of column {declared.column}: {error}"
        ) from None


def load_schema(name: str, directory: Path) -> BodySchema:
    """A schema by its shipped name, or by its file, which lies in ``directory`` unless its path is
    a whole one. Raises InvalidRequest."""
    try:
        text = (
            (directory / name).read_text(encoding="utf-8")
            if name.endswith(FILE_SUFFIX)
            else cellfeed.schemas.avro_text(name)
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(
            f"it cannot be read: {why}; give a file that ends in {FILE_SUFFIX} or one of"
            f" {', '.join(cellfeed.schemas.avro_names())}"
        ) from None
    return body_schema(text)
