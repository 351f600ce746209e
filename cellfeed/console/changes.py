"""The forms that change something. Each carries a CSRF token, and asks for a reason where the
command line does."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from litestar import post
from litestar.enums import RequestEncodingType
from litestar.params import Body
from litestar.response import Redirect

from cellfeed.bridge.groups.control import Control
from cellfeed.bridge.groups.history import Operator, operator
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.console.pages import ConsoleState
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.version import INDEX_GROUPS

_SEE_OTHER: Final = 303


class CellForm(msgspec.Struct):
    """A parked cell. ``reason``: for skipping it."""

    group: str
    cell: str
    reason: str = ""


class GroupForm(msgspec.Struct):
    """A trigger or an export, and the reason for its change."""

    group: str
    reason: str = ""


_Cell = Annotated[CellForm, Body(media_type=RequestEncodingType.URL_ENCODED)]
_Group = Annotated[GroupForm, Body(media_type=RequestEncodingType.URL_ENCODED)]


@post("/parked/retry", sync_to_thread=True)
def retry(state: ConsoleState, data: _Cell) -> Redirect:
    """Has a parked cell tried again."""
    ParkedCells(state.instance.datastore.state).ask_retry(data.group, data.cell)
    return _back("/parked")


@post("/parked/skip", sync_to_thread=True)
def skip(state: ConsoleState, data: _Cell) -> Redirect:
    """Gives a parked cell up, with a reason."""
    if not data.reason.strip():
        raise InvalidRequest("say why the cell is given up: the reason is kept with it")
    ParkedCells(state.instance.datastore.state).skip(data.group, data.cell, data.reason)
    return _back("/parked")


@post("/groups/pause", sync_to_thread=True)
def pause(state: ConsoleState, data: _Group) -> Redirect:
    """Pauses a trigger or an export, with a reason."""
    _control(state, data).pause(_operator(data.reason))
    return _back(f"/groups/{quote(data.group)}")


@post("/groups/resume", sync_to_thread=True)
def resume(state: ConsoleState, data: _Group) -> Redirect:
    """Ends the pause of a trigger or an export, with a reason."""
    _control(state, data).resume(_operator(data.reason))
    return _back(f"/groups/{quote(data.group)}")


def _control(state: ConsoleState, data: GroupForm) -> Control:
    look = state.looks.latest().status
    known = {each.group for each in (*look.triggers, *look.exports)}
    if data.group not in known or data.group.startswith(INDEX_GROUPS):
        raise InvalidRequest(f"there is no trigger or export {data.group!r} to pause or resume")
    return Control(state.instance.datastore.state, data.group)


def _operator(reason: str) -> Operator:
    by = operator(reason)
    return Operator(f"{by.name} (console)", by.because)


def _back(path: str) -> Redirect:
    return Redirect(path, status_code=_SEE_OTHER)


CHANGES: Final = [retry, skip, pause, resume]
