"""The declaration of a column's bodies in a configuration.

schemas:
  - column: BASE
    schema: taxi_trip              # shipped in schemas/avro, or a file: trips/base.avsc
    unfit: envelope
    compatibility: FULL
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from cellfeed.bridge.events.named_formats import Layout
from cellfeed.store.cells.cell import check_column_name
from cellfeed.store.errors import InvalidRequest

COLUMNS_MAX: Final = 100
"""Columns with a schema: every gateway looks at all their versions each second."""

Compatibility = Literal["FULL", "BACKWARD", "FORWARD"]
"""The compatibility of a new version with every earlier one
(:mod:`cellfeed.bridge.typed.compatibility`)."""

Policy = Literal["envelope", "park"]


class ColumnSchema(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The Avro schema of a column's bodies: the name of one that is shipped (``taxi_trip``), or a
    file that ends in ``.avsc`` (a relative path lies in the run directory). ``unfit``: the
    treatment of a body that fits no version: ``envelope`` shows it as JSON in its record, ``park``
    leaves it out of the topic and lists it. ``compatibility``: that of a new version with all
    earlier ones."""

    column: str
    schema: Annotated[str, Meta(min_length=1)]
    unfit: Policy = "envelope"
    compatibility: Compatibility = "FULL"


def check_schemas(declared: Sequence[ColumnSchema]) -> None:
    """Checks rules that no type expresses. Raises InvalidRequest."""
    if len(declared) > COLUMNS_MAX:
        raise InvalidRequest(
            f"{len(declared)} columns have schemas; at most {COLUMNS_MAX} are possible, take"
            " some out"
        )
    for each in declared:
        check_column_name(each.column)
    if repeated := [
        name for name, count in Counter(each.column for each in declared).items() if count > 1
    ]:
        raise InvalidRequest(
            f"column {repeated[0]}: its schema is given twice; a new version takes the place of the"
            " old one, which is kept in the datastore"
        )


def check_layout(of: str, column: str, layout: Layout, unfit: Policy) -> None:
    """Raises InvalidRequest for the body's type alone where a body that fits no version is to be
    shown as JSON text. ``of``: the topic or export that asks for it."""
    if layout.body == "record" and unfit != "park":
        raise InvalidRequest(
            f"{of}: body: record has no place for a body that fits no version of the schema, and"
            f" column {column} says unfit: {unfit}; write unfit: park for the column (such cells"
            " are left out and counted), or take body: record out"
        )
