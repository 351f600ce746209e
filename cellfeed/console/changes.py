"""The forms that change groups and parked cells. Each carries a CSRF token, needs a right, is in
the audit log, and asks for a reason where the command line does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from litestar import post
from litestar.enums import RequestEncodingType
from litestar.params import Body
from litestar.response import Redirect

from cellfeed.bridge.groups.control import Control
from cellfeed.bridge.groups.history import Operator, operator
from cellfeed.bridge.triggers.operate.locations import wanted_locations
from cellfeed.bridge.triggers.operate.reset import Reset
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.console.door import Visitor, is_signed_in
from cellfeed.console.frame import AnyRequest, ConsoleState
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.version import INDEX_GROUPS
from cellfeed.store.security.callers import Caller

RESET_WAIT_S: Final = 20.0
"""How long a reset waits for workers to give their shards back."""

RESET_FORM_BYTES_MAX: Final = 512 << 10
"""A reset names each shard with its location."""

CHOSEN_MAX: Final = 500
"""Parked cells of one form."""

_SEE_OTHER: Final = 303


class GroupForm(msgspec.Struct):
    """A trigger or an export, and the reason for its change."""

    group: str
    reason: str = ""


class ResetForm(msgspec.Struct):
    """A trigger, the locations that its preview has shown, and how they were asked for."""

    group: str
    exactly: str
    to: str = ""
    reason: str = ""


_Group = Annotated[GroupForm, Body(media_type=RequestEncodingType.URL_ENCODED)]
_Reset = Annotated[ResetForm, Body(media_type=RequestEncodingType.URL_ENCODED)]


@post("/parked/retry")
async def retry(request: AnyRequest, state: ConsoleState, caller: Visitor) -> Redirect:
    """Has parked cells tried again."""
    form = await request.form()
    cells = ParkedCells(state.instance.datastore.state)

    def ask(group: str, cell: str) -> None:
        cells.ask_retry(group, cell)

    chosen = _chosen(form.getall("cell", []), caller)
    await asyncio.to_thread(_each, state, request, "retry parked cell", chosen, ask)
    return _back("/parked")


@post("/parked/skip")
async def skip(request: AnyRequest, state: ConsoleState, caller: Visitor) -> Redirect:
    """Gives parked cells up, with a reason."""
    form = await request.form()
    chosen = _chosen(form.getall("cell", []), caller)
    reason = str(form.get("reason", ""))
    if not reason.strip():
        raise InvalidRequest("say why the cell is given up: the reason is kept with it")
    by = _operator(caller, reason)
    why = f"{by.because} ({by.name})"
    cells = ParkedCells(state.instance.datastore.state)

    def give_up(group: str, cell: str) -> None:
        cells.skip(group, cell, why)

    await asyncio.to_thread(_each, state, request, "skip parked cell", chosen, give_up)
    return _back("/parked")


@post("/groups/pause", sync_to_thread=True)
def pause(request: AnyRequest, state: ConsoleState, caller: Visitor, data: _Group) -> Redirect:
    """Pauses a trigger or an export, with a reason."""
    control, by = _control(state, caller, data.group), _operator(caller, data.reason)
    with state.door.audited(request, "pause group", data.group):
        control.pause(by)
    return _back(f"/groups/{quote(data.group)}")


@post("/groups/resume", sync_to_thread=True)
def resume(request: AnyRequest, state: ConsoleState, caller: Visitor, data: _Group) -> Redirect:
    """Ends the pause of a trigger or an export, with a reason."""
    control, by = _control(state, caller, data.group), _operator(caller, data.reason)
    with state.door.audited(request, "resume group", data.group):
        control.resume(by)
    return _back(f"/groups/{quote(data.group)}")


@post("/groups/reset", sync_to_thread=True, request_max_body_size=RESET_FORM_BYTES_MAX)
def reset(request: AnyRequest, state: ConsoleState, caller: Visitor, data: _Reset) -> Redirect:
    """Has a trigger continue at the locations that its preview has shown."""
    _control(state, caller, data.group)
    _, datastore, coordinator = state.instance
    by = _operator(caller, data.reason)
    locations = wanted_locations(data.exactly, data.group, datastore, coordinator)
    with state.door.audited(request, "reset group", f"{data.group} to {data.to}"):
        Reset(datastore, coordinator, data.group, by, to=data.to[:100]).run(
            locations, wait_s=RESET_WAIT_S
        )
    return _back(f"/groups/{quote(data.group)}")


def _chosen(texts: Sequence[Any], caller: Caller) -> list[tuple[str, str]]:
    """The group and the id of each cell that a form has: ``ID GROUP``. Raises InvalidRequest,
    Forbidden."""
    chosen = []
    for text in texts:
        cell, space, group = str(text).partition(" ")
        if not space:
            raise InvalidRequest(f"{ascii(text)[:80]} is no parked cell: its id and its group")
        caller.check_group("operate", group)
        chosen.append((group, cell))
    if not 0 < len(chosen) <= CHOSEN_MAX:
        raise InvalidRequest(f"choose 1 to {CHOSEN_MAX} parked cells")
    return chosen


def _each(
    state: ConsoleState,
    request: AnyRequest,
    did: str,
    chosen: Sequence[tuple[str, str]],
    act: Callable[[str, str], None],
) -> None:
    """Does an act with each cell. One that fails ends it: those before are done, and are gone from
    the page."""
    for group, cell in chosen:
        with state.door.audited(request, did, f"{group} {cell}"):
            act(group, cell)


def _control(state: ConsoleState, caller: Caller, group: str) -> Control:
    caller.check_group("operate", group)
    look = state.looks.latest().status
    known = {each.group for each in (*look.triggers, *look.exports)}
    if group not in known or group.startswith(INDEX_GROUPS):
        raise InvalidRequest(f"there is no trigger or export {group!r} to pause or resume")
    return Control(state.instance.datastore.state, group)


def _operator(caller: Caller, reason: str) -> Operator:
    by = operator(reason)
    name = caller.principal if is_signed_in(caller) else by.name
    return Operator(f"{name} (console)", by.because)


def _back(path: str) -> Redirect:
    return Redirect(path, status_code=_SEE_OTHER)


CHANGES: Final = [retry, skip, pause, resume, reset]
