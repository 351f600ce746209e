"""The state that the console's pages share, and the frame around each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from litestar import Request
from litestar.datastructures import State
from litestar.response import Template
from prometheus_client import CollectorRegistry

from cellfeed.assembly.datastore import Opened
from cellfeed.console.door import Door, is_signed_in
from cellfeed.console.query.tables import SqlTables
from cellfeed.console.sight import seen, sees_all
from cellfeed.status.looks import Looks
from cellfeed.status.newest_of_many import NewestCells
from cellfeed.store.http.server.worker import StopSignal
from cellfeed.store.security.callers import Caller

if TYPE_CHECKING:
    from cellfeed.console.oidc import Provider


AnyRequest = Request[Any, Any, Any]


def asked(request: AnyRequest, name: str) -> str:
    """The value that a page's address has under a name, without blanks around it."""
    return str(request.query_params.get(name, "")).strip()


@dataclass
class Streams:
    """The number of open pages that follow changes; the event loop alone counts them."""

    count: int = 0


class ConsoleState(State):
    """The state that all pages share. Set once, before the first request."""

    instance: Opened
    looks: Looks
    newest: NewestCells
    registry: CollectorRegistry
    stop: StopSignal
    streams: Streams
    door: Door
    provider: Provider | None
    tables: SqlTables


def page(
    state: ConsoleState, caller: Caller, template: str, title: str, **context: Any
) -> Template:
    """A page with the frame that all have."""
    look = context.pop("look", None) or state.looks.latest()
    standing = seen(caller, look.standing)
    return Template(
        f"{template}.html",
        context={
            "title": title,
            "datastore": state.instance.datastore.name,
            "look": look,
            "standing": standing,
            "sees_all": sees_all(caller),
            "caller": caller,
            "signed_in": is_signed_in(caller),
            **context,
        },
        status_code=context.pop("status", None),
    )
