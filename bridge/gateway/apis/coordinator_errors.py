"""The code of a group's call that failed in the coordination."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from cellfeed.store.errors import CellfeedError, StaleWriter


def coordinator_error(error: CellfeedError) -> ErrorCode:
    """``not_coordinator`` when another gateway has the group since. Otherwise a code after which
    the client tries again, if that can help."""
    if isinstance(error, StaleWriter):
        return ErrorCode.not_coordinator
    if error.retriable:
        return ErrorCode.coordinator_not_available
    return ErrorCode.unknown_server_error
