"""Refusals of the schema registry, with the codes that Confluent's clients know."""

from __future__ import annotations

from typing import Final

SUBJECT_NOT_FOUND: Final = 40401

VERSION_NOT_FOUND: Final = 40402

SCHEMA_NOT_FOUND: Final = 40403

INVALID_SCHEMA: Final = 42201

INVALID_VERSION: Final = 42202

OPERATION_NOT_PERMITTED: Final = 42205
"""Error codes of Confluent's Schema Registry API; the first three digits are the HTTP status."""


class RegistryError(Exception):
    """A call that the registry refuses, with the code that Confluent's clients know. The
    registry's HTTP application answers it."""

    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code

    @property
    def status(self) -> int:
        """The HTTP status that the code implies."""
        return self.error_code // 100 if self.error_code > 999 else self.error_code
