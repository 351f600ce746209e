"""Waiting for an outlet: requests that a worker answers when it has passed, or after a while."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cellfeed.store.cells.token import Token
from cellfeed.store.errors import WrongAnswer
from cellfeed.store.http.calls.fields import decoded
from cellfeed.store.http.calls.requests import Requests
from cellfeed.store.http.calls.steps import Steps
from cellfeed.store.http.wait_messages import WaitedMessage
from cellfeed.store.waits.waiting import (
    LONG_POLL_S_MAX,
    TIMEOUT_S,
    Passed,
    check_timeout_s,
    one_outlet,
    time_over,
)

ANSWER_S: Final = 2.0
"""How long behind its own time a request's answer is waited for: a worker that is asked with no
time left looks once more."""


def wait_for(requests: Requests, token: object, options: Mapping[str, Any]) -> Steps[Passed]:
    """As :meth:`cellfeed.store.api.CellStore.wait_for`."""
    kind, name = one_outlet(options)
    timeout_s = check_timeout_s(options.get("timeout_s", TIMEOUT_S))
    text = str(Token.of(token))
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        asked_s = min(left_s, LONG_POLL_S_MAX)
        asked = msgspec.json.encode({"token": text, kind: name, "timeout_s": asked_s})
        content = yield from requests.call(
            "POST", "/wait", asked, time.monotonic() + asked_s + ANSWER_S, writes=False
        )
        answer = decoded(content, WaitedMessage)
        if repr(name) not in answer.outlet:
            raise WrongAnswer(
                f"asked to wait for {kind} {name!r}, a worker answers of {answer.outlet}"
            )
        if answer.passed:
            return Passed(answer.outlet, answer.parked, answer.skipped)
        if asked_s == left_s:
            raise time_over(answer.outlet, answer.missing, answer.because, timeout_s)
