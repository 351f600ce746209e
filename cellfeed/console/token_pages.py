"""The page of tokens: list, create, revoke. Everybody may see and make tokens of their own; those
of others take the right to operate the datastore."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
from litestar import get, post
from litestar.enums import RequestEncodingType
from litestar.params import Body
from litestar.response import Redirect, Template

from cellfeed.console.door import Visitor
from cellfeed.console.frame import AnyRequest, ConsoleState, page
from cellfeed.store.errors import Forbidden, InvalidRequest, NotFound
from cellfeed.store.security.access import AccessToken
from cellfeed.store.security.callers import Caller
from cellfeed.store.security.tokens import create_token, list_tokens, revoke_token
from cellfeed.store.security.users import read_security

DAYS_MAX: Final = 366
TOKENS_OF_A_PAGE: Final = 500
TOKENS_OF_ONE_MAX: Final = 100
"""Of one principal, made here: a list that nobody can read protects nothing."""

_DAY_S: Final = 86_400
_SEE_OTHER: Final = 303


class TokenForm(msgspec.Struct):
    """``closes``: it is known that the first token closes access."""

    principal: str
    days: str = "90"
    closes: str = ""


class RevokeForm(msgspec.Struct):
    id: str


_Token = Annotated[TokenForm, Body(media_type=RequestEncodingType.URL_ENCODED)]
_Revoke = Annotated[RevokeForm, Body(media_type=RequestEncodingType.URL_ENCODED)]


def _shown(
    state: ConsoleState, caller: Caller, made: str = "", status: int | None = None
) -> Template:
    table = state.instance.datastore.state
    is_operator = caller.may_datastore("operate")
    tokens = [
        each for each in list_tokens(table) if is_operator or each.principal == caller.principal
    ]
    return page(
        state,
        caller,
        "tokens",
        "Tokens",
        status=status,
        tokens=tokens[:TOKENS_OF_A_PAGE],
        count=len(tokens),
        is_operator=is_operator,
        made=made,
        closes=read_security(table).is_open,
    )


@get("/tokens")
async def tokens_page(state: ConsoleState, caller: Visitor) -> Template:
    """The tokens by their ids, without their secrets."""
    return await asyncio.to_thread(_shown, state, caller)


@post("/tokens")
async def create(
    request: AnyRequest, state: ConsoleState, caller: Visitor, data: _Token
) -> Template:
    """Makes a token and shows it, once: only its hash is stored."""
    # Litestar awaits no thread for two handlers of one path.
    return await asyncio.to_thread(_created, request, state, caller, data)


def _created(request: AnyRequest, state: ConsoleState, caller: Caller, data: TokenForm) -> Template:
    principal, table = data.principal.strip(), state.instance.datastore.state
    _check_may_make(caller, principal)
    if not (data.days.strip().isdigit() and 1 <= int(data.days.strip()[:6]) <= DAYS_MAX):
        raise InvalidRequest(f"a token counts for 1 to {DAYS_MAX} days")
    security = read_security(table)
    if security.is_open and not data.closes:
        raise InvalidRequest(
            "the first token closes access to everything that no ACL allows: say that you know it"
        )
    if not security.covers(caller.principal, principal) and caller.how != "loopback":
        raise Forbidden(
            f"{ascii(principal)[:80]} has rights that you lack: a token of it would give them to"
            " you"
        )
    theirs = [each for each in security.tokens.values() if each.principal == principal]
    if len(theirs) >= TOKENS_OF_ONE_MAX:
        raise InvalidRequest(
            f"{ascii(principal)[:80]} has {len(theirs)} tokens: revoke those that are not used"
        )
    with state.door.audited(request, "create token", principal):
        made = create_token(table, principal, int(data.days) * _DAY_S)
    return _shown(state, caller, made, status=200)


@post("/tokens/revoke", sync_to_thread=True)
def revoke(request: AnyRequest, state: ConsoleState, caller: Visitor, data: _Revoke) -> Redirect:
    """Ends a token: within a second nobody takes it, and sessions that began with it end."""
    table = state.instance.datastore.state
    found: AccessToken | None = next(
        (each for each in list_tokens(table) if each.id == data.id), None
    )
    is_operator = caller.may_datastore("operate")
    if found is None or not (is_operator or found.principal == caller.principal):
        raise NotFound("there is no such token")
    with state.door.audited(request, "revoke token", found.id):
        revoke_token(table, found.id)
    return Redirect("/tokens", status_code=_SEE_OTHER)


def _check_may_make(caller: Caller, principal: str) -> None:
    if principal != caller.principal:
        caller.check_datastore("operate")


TOKEN_PAGES: Final = [tokens_page, create, revoke]
