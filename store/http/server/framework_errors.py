"""Errors of the framework as errors of ours, and their answers."""

from __future__ import annotations

import logging
from typing import Any, Final

from litestar import Request
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.response import Response

from cellfeed.store.errors import CellfeedError, InvalidRequest, MethodNotAllowed, UnknownRoute
from cellfeed.store.http.server.asgi import PeerGone, Scope
from cellfeed.store.http.server.handlers import NegotiatedResponse, plain_scope
from cellfeed.store.security.tokens import without_secrets

_log: Final = logging.getLogger("cellfeed.worker")


def answer_error(request: Request[Any, Any, Any], problem: Exception) -> Response[Any]:
    if isinstance(problem, PeerGone):
        raise problem
    error = as_error(problem, plain_scope(request))
    if error.code == CellfeedError.code:
        _log.error("%s %s failed", request.method, request.scope["path"], exc_info=problem)
    return NegotiatedResponse(error, status_code=error.http_status)


def as_error(problem: Exception, scope: Scope) -> CellfeedError:
    if isinstance(problem, CellfeedError):
        return problem
    path = without_secrets(ascii(scope["path"])[:200])
    if isinstance(problem, ValidationException):
        reasons = [
            f"{item.get('key')}: {item.get('message')}"
            for item in problem.extra or ()
            if isinstance(item, dict)
        ]
        return InvalidRequest(f"request {path}: {'; '.join(reasons) or problem.detail}")
    if isinstance(problem, MethodNotAllowedException):
        return MethodNotAllowed(f"{scope['method']} is not a method of {path}")
    if isinstance(problem, NotFoundException):
        return UnknownRoute(f"there is no path {path}; /schema lists those that are")
    if isinstance(problem, HTTPException) and problem.status_code < 500:
        return InvalidRequest(f"request {path}: {problem.detail}")
    return CellfeedError(
        f"{type(problem).__name__} while the request was answered; the worker's log has the trace"
    )
