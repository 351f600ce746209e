"""tokens create|list|revoke: bearer tokens for HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.table import Table

from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption, opened, opened_to
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.security.access import AccessToken
from cellfeed.store.security.tokens import create_token, list_tokens, revoke_token, without_secrets

_DAY_S: Final = 86_400

app = typer.Typer(
    no_args_is_help=True,
    help="Bearer tokens for HTTP: create one for a principal, list them, revoke one.",
)


@app.command("create")
def create(
    principal: Annotated[
        str, typer.Argument(help="The holder of the token, to whom ACLs give rights.")
    ],
    days: Annotated[
        float, typer.Option("--days", help="The token counts for so many days.")
    ] = 90.0,
    never_expires: Annotated[
        bool, typer.Option("--never-expires", help="The token counts until it is revoked.")
    ] = False,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it, once: only its hash is stored. It counts a second later. The first
    token closes access as the first user does: an ACL must allow each action."""
    if not days > 0:
        raise InvalidRequest(f"--days {days:g} must be above 0")
    with opened_to("create token", principal, run_dir) as instance:
        token = create_token(
            instance.datastore.state, principal, None if never_expires else days * _DAY_S
        )
    if as_json:
        print_json({"token": token, "principal": principal})
    else:
        typer.echo(token)


@app.command("list")
def show(run_dir: RunDirOption = DEFAULT_RUN_DIR, as_json: JsonOption = False) -> None:
    """List the tokens by their ids, without their secrets."""
    with opened(run_dir) as instance:
        found = list_tokens(instance.datastore.state)
    if as_json:
        for token in found:
            print_json(_row(token))
        return
    table = Table("id", "principal", "created", "expires", box=None)
    for token in found:
        row = _row(token)
        table.add_row(
            token.id, token.principal, str(row["created_at"]), str(row["expires_at"] or "never")
        )
    console.print(table if found else "there are no tokens")


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id, from `cellfeed tokens list`.")],
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """End a token: within a second no worker takes it, and streams that it opened end."""
    with opened_to("revoke token", without_secrets(token_id), run_dir) as instance:
        revoke_token(instance.datastore.state, token_id)
    console.print("the token is revoked")


def _row(token: AccessToken) -> dict[str, object]:
    return {
        "id": token.id,
        "principal": token.principal,
        "created_at": _time(token.created_at_s),
        "expires_at": _time(token.expires_at_s) if token.expires_at_s is not None else None,
    }


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
