"""The error of a body that is not of a schema."""

from __future__ import annotations


class SchemaMismatch(Exception):
    """A body is not of a schema: which member, and why. The encoder's callers catch it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{'.'.join(reversed(self.path)) or 'the body'} {self.reason}"


def kind_of(value: object) -> str:
    """The kind of a decoded JSON value, in words."""
    kinds = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "an integer",
        float: "a number with a fraction",
        type(None): "null",
    }
    return kinds.get(type(value), type(value).__name__)
