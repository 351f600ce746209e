"""Log-in and log-out: a token, a user's password, or an identity provider."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec
from litestar import get, post
from litestar.datastructures import Cookie
from litestar.enums import RequestEncodingType
from litestar.exceptions import NotFoundException
from litestar.params import Body
from litestar.response import Redirect, Template

from cellfeed.config.consoles import ANSWER_PATH
from cellfeed.console.door import LOGIN, Door, Visitor, local_path
from cellfeed.console.frame import AnyRequest, ConsoleState, asked
from cellfeed.console.sessions import SESSION_S
from cellfeed.store.errors import Unauthenticated
from cellfeed.store.http.server.audited import NOBODY, address_of
from cellfeed.store.security.callers import Caller

T = TypeVar("T", Template, Redirect)
_SEE_OTHER: Final = 303
_CREDENTIALS_BYTES_MAX: Final = 8 << 10


class LoginForm(msgspec.Struct):
    """``secret``: a token, or the password of ``user``."""

    secret: str
    user: str = ""
    next: str = "/"


_Login = Annotated[LoginForm, Body(media_type=RequestEncodingType.URL_ENCODED)]


def _page(
    state: ConsoleState, wanted: str, problem: str = "", status: int = 200, **context: Any
) -> Template:
    return Template(
        "login.html",
        context={
            "title": "Log in",
            "datastore": state.instance.datastore.name,
            "wanted": local_path(wanted),
            "problem": problem,
            "provider": state.provider.name if state.provider is not None else "",
            **context,
        },
        status_code=status,
    )


@get(LOGIN)
async def login_page(request: AnyRequest, state: ConsoleState) -> Template | Redirect:
    """The form, and the way to the identity provider."""
    if not state.door.callers.required:
        return Redirect("/", status_code=_SEE_OTHER)
    return _page(state, asked(request, "next"))


@post(LOGIN)
async def login(request: AnyRequest, state: ConsoleState, data: _Login) -> Template | Redirect:
    """Begins a session, where the credentials count. Guesses are few a minute."""
    door, address = state.door, address_of(request.scope)  # type: ignore[arg-type]
    if not door.callers.required:
        return Redirect("/", status_code=_SEE_OTHER)
    door.failed.check(address)
    secret = data.secret.strip()
    try:
        caller = await door.callers.of(
            {
                "headers": [(b"authorization", _authorization(data.user.strip(), secret))],
                "client": request.scope.get("client"),
            }
        )
    except Unauthenticated as error:
        door.failed.failed(address)
        if door.audit is not None:
            door.audit.count(NOBODY, "log in", str(error.http_status))
        return _page(state, data.next, str(error), error.http_status)
    return signed_in(door, caller, address, Redirect(local_path(data.next), status_code=_SEE_OTHER))


@post("/logout")
async def logout(request: AnyRequest, state: ConsoleState, caller: Visitor) -> Redirect:
    """Ends the session, for every copy of its cookie."""
    door = state.door
    door.sessions.end(request.cookies.get(door.cookies.session, ""))
    if door.audit is not None:
        door.audit.record(caller.principal, "log out", how=caller.how, result="done")
    answer = Redirect(LOGIN, status_code=_SEE_OTHER)
    answer.cookies = [_cookie(door, "", 0)]
    return answer


@get(f"{LOGIN}/provider")
async def to_provider(request: AnyRequest, state: ConsoleState) -> Redirect:
    """Sends the browser to the identity provider."""
    if state.provider is None:
        raise NotFoundException(detail="this console has no identity provider")
    address, kept = await state.provider.begin(local_path(asked(request, "next")))
    answer = Redirect(address, status_code=_SEE_OTHER)
    # Not strict: the provider's redirection to us is a request from another site.
    answer.cookies = [
        Cookie(
            key=state.door.cookies.login,
            value=kept,
            path=LOGIN,
            max_age=600,
            httponly=True,
            samesite="lax",
            secure=state.door.cookies.secure,
        )
    ]
    return answer


@get(ANSWER_PATH)
async def from_provider(request: AnyRequest, state: ConsoleState) -> Template:
    """The provider's answer. It is a page, and no redirection: browsers send no strict cookie along
    a chain that began at another site."""
    if state.provider is None:
        raise NotFoundException(detail="this console has no identity provider")
    door, address = state.door, address_of(request.scope)  # type: ignore[arg-type]
    door.failed.check(address)
    try:
        kept = request.cookies.get(door.cookies.login, "")
        caller, wanted = await state.provider.end(
            kept, urlencode(list(request.query_params.multi_items()))
        )
    except Unauthenticated as error:
        door.failed.failed(address)
        return _page(state, "/", str(error), error.http_status)
    shown = Template(
        "logged_in.html",
        context={
            "title": "Logged in",
            "datastore": state.instance.datastore.name,
            "wanted": local_path(wanted),
        },
    )
    return signed_in(door, caller, address, shown)


def signed_in(door: Door, caller: Caller, address: str, answer: T) -> T:
    """``answer`` with the cookie of a new session. A session is never taken over from before the
    log-in."""
    answer.cookies = [_cookie(door, door.sessions.begin(caller), int(SESSION_S))]
    if door.audit is not None:
        door.audit.record(
            caller.principal, "log in", how=caller.how, address=address, result="done"
        )
    return answer


def _cookie(door: Door, value: str, max_age_s: int) -> Cookie:
    return Cookie(
        key=door.cookies.session,
        value=value,
        path="/",
        max_age=max_age_s,
        httponly=True,
        samesite="strict",
        secure=door.cookies.secure,
    )


def _authorization(user: str, secret: str) -> bytes:
    if len(user) + len(secret) > _CREDENTIALS_BYTES_MAX:
        raise Unauthenticated("more characters than credentials have")
    if user:
        return b"Basic " + b64encode(f"{user}:{secret}".encode())
    return b"Bearer " + secret.encode()


LOGINS: Final = [login_page, login, logout, to_provider, from_provider]
