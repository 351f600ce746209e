"""Views of a log: one column, a filter on fields of the body, a projection of fields. A cell that a
view leaves out has no record; one that it shows keeps its added_id.

    column: BASE
    filter: [{field: payment.kind, op: "=", value: card}, {field: tip_cents, op: exists}]
    fields: [fare_cents, payment.kind]

A cell is shown when all conditions hold. A field's path goes through objects by ``.``; there is no
way into lists. Two JSON values are equal when they are of one kind (a number is not a text, true is
not 1) and the same; ``1`` and ``1.0`` are one number. A field that is missing is unequal to
everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from cellfeed.store.cells.body_codec import decode_bodies
from cellfeed.store.cells.canonical_json import canonical_of_decoded
from cellfeed.store.cells.cell import ERASED_COLUMN, ERASED_JSON, StoredCell, check_column_name
from cellfeed.store.errors import InvalidRequest

FIELDS_MAX: Final = 100
"""Conditions of a filter, and fields of a projection: each is looked up in every body."""

PATH_PARTS_MAX: Final = 64
"""Parts of a field's path: no body is nested deeper."""

_NUMBERS: Final = (int, float)
_decode: Final = msgspec.json.Decoder().decode
_MISSING: Final = object()

FieldPath = tuple[str, ...]


class Condition(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One condition on a body: ``value`` goes with ``=`` and ``!=``, ``values`` with ``in``,
    neither with ``exists``."""

    field: str
    op: Literal["=", "!=", "in", "exists"]
    value: str | int | float | bool | msgspec.UnsetType | None = msgspec.UNSET
    values: list[str | int | float | bool | None] | msgspec.UnsetType = msgspec.UNSET


class View(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """See the module. Without anything it is the whole log."""

    column: str | None = None
    filter: list[Condition] = []
    fields: list[str] = []

    @property
    def shows_all(self) -> bool:
        """Whether every cell of the log has a record."""
        return self.column is None and not self.filter

    def check(self) -> View:
        """Raises InvalidRequest for a view that can show nothing, or other cells than were
        meant."""
        if self.column is not None:
            check_column_name(self.column)
        if len(self.filter) > FIELDS_MAX or len(self.fields) > FIELDS_MAX:
            raise InvalidRequest(f"a view has at most {FIELDS_MAX} conditions and as many fields")
        for condition in self.filter:
            _check_condition(condition)
        paths = sorted(_path(field) for field in self.fields)
        for shorter, longer in itertools.pairwise(paths):
            if longer[: len(shorter)] == shorter:
                raise InvalidRequest(
                    f"fields: {'.'.join(longer)!r} is given twice, or is a part of"
                    f" {'.'.join(shorter)!r} already"
                )
        return self


class ViewReader:
    """Applies one view to cells. Safe to use from several threads."""

    def __init__(self, view: View) -> None:
        self._column = view.column
        self._conditions = [_compiled(condition) for condition in view.check().filter]
        self._fields = [_path(field) for field in view.fields]

    def read(self, cells: Sequence[StoredCell]) -> tuple[list[StoredCell], list[bytes]]:
        """The cells that are shown, in order, and the bodies that they are shown with (canonical
        JSON; ``ERASED_JSON`` for one without). A condition holds for no body that was erased; every
        view shows the cell that marks an erasure. Raises DataDamaged."""
        column = self._column
        shown = (
            list(cells)
            if column is None
            else [
                cell
                for cell in cells
                if cell.column_name == column or cell.column_name == ERASED_COLUMN
            ]
        )
        bodies = decode_bodies([cell.body for cell in shown])
        if not self._conditions and not self._fields:
            return shown, bodies
        kept: list[StoredCell] = []
        kept_bodies: list[bytes] = []
        for cell, body_json in zip(shown, bodies, strict=True):
            if body_json == ERASED_JSON:
                if not self._conditions or cell.column_name == ERASED_COLUMN:
                    kept.append(cell)
                    kept_bodies.append(body_json)
                continue
            body = _decode(body_json)
            if all(is_met(body) for is_met in self._conditions):
                kept.append(cell)
                kept_bodies.append(
                    canonical_of_decoded(project(body, self._fields)) if self._fields else body_json
                )
        return kept, kept_bodies


def project(body: dict[str, Any], fields: Sequence[FieldPath]) -> dict[str, Any]:
    """The body with only these fields, each where it was; those that are missing are left out."""
    found: dict[str, Any] = {}
    for path in fields:
        value = _at(body, path)
        if value is _MISSING:
            continue
        place = found
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return found


def _check_condition(condition: Condition) -> None:
    _path(condition.field)
    has_value, has_values = (
        condition.value is not msgspec.UNSET,
        condition.values is not msgspec.UNSET,
    )
    wanted = {
        "=": (True, False),
        "!=": (True, False),
        "in": (False, True),
        "exists": (False, False),
    }[condition.op]
    if (has_value, has_values) != wanted:
        words = {
            (True, False): "a value",
            (False, True): "a list, values",
            (False, False): "neither value nor values",
        }[wanted]
        raise InvalidRequest(f"filter on {condition.field!r}: {condition.op} goes with {words}")


def _path(field: str) -> FieldPath:
    path = tuple(field.split("."))
    if not all(path) or len(path) > PATH_PARTS_MAX:
        raise InvalidRequest(
            f"{field[:80]!r} is no path of a field: 1 to {PATH_PARTS_MAX} names with dots between"
            " them, as payment.kind"
        )
    return path


def _at(body: Any, path: FieldPath) -> Any:
    for part in path:
        if not isinstance(body, dict) or part not in body:
            return _MISSING
        body = body[part]
    return body


def _compiled(condition: Condition) -> Callable[[Any], bool]:
    path = _path(condition.field)
    if condition.op == "exists":
        return lambda body: _at(body, path) is not _MISSING
    if condition.op == "in":
        values = [] if condition.values is msgspec.UNSET else list(condition.values)
        return lambda body: any(same_json(_at(body, path), value) for value in values)
    value, wanted = condition.value, condition.op == "="
    return lambda body: same_json(_at(body, path), value) == wanted


def same_json(one: Any, other: Any) -> bool:
    """Whether two decoded JSON values that are no lists or objects are the same."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, _NUMBERS) and isinstance(other, _NUMBERS):
        return one == other
    return type(one) is type(other) and bool(one == other)
