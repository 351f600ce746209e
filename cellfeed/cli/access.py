"""users add|list|remove|passwd and acls allow|deny|remove|list: users of the Kafka gateways and of
HTTP, and their rights."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.table import Table

from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption, opened, opened_to
from cellfeed.cli.output import JsonOption, console, errors, print_json
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.security.access import User
from cellfeed.store.security.rights import Acl, Effect
from cellfeed.store.security.users import (
    allow,
    list_acls,
    list_users,
    open_access,
    put_user,
    read_security,
    remove_acl,
    remove_user,
)

if TYPE_CHECKING:
    from cellfeed.assembly.datastore import Opened

PASSWORD_VARIABLE: Final = "CELLFEED_PASSWORD"  # noqa: S105 (the name of a variable)

users_app = typer.Typer(
    no_args_is_help=True,
    help="Users of gateways and HTTP: add, list, remove, give another password.",
)
acls_app = typer.Typer(
    no_args_is_help=True,
    help=(
        "The rights of users, tokens and certificates: allow, deny, remove, list. From the first"
        " user, token or ACL on, an ACL must allow each action."
    ),
)

NameArgument = Annotated[str, typer.Argument(help="The user's name.")]
PrincipalArgument = Annotated[
    str,
    typer.Argument(
        help=(
            "The user, or a token's principal; ANONYMOUS without authentication; CN=… of a client"
            " certificate; '*' is everybody."
        )
    ),
]
OperationArgument = Annotated[
    str,
    typer.Argument(
        help=(
            "datastore: read, put, erase, operate; column: read, put; topic: read; group: read,"
            " delete, operate. Each includes describe."
        )
    ),
]
KindArgument = Annotated[str, typer.Argument(help="datastore, column, topic or group.")]
PatternArgument = Annotated[str, typer.Argument(help="A name, or a prefix with * at its end.")]


@users_app.command("add")
def add_user(name: NameArgument, run_dir: RunDirOption = DEFAULT_RUN_DIR) -> None:
    """Add a user. The password comes from the variable CELLFEED_PASSWORD, from a prompt, or as the
    first line of the standard input."""
    password = _password()
    with opened_to("add user", name, run_dir) as instance:
        put_user(instance.datastore.state, name, password, is_new=True)
    console.print(
        f"user {name} is added, with the rights that ACLs give: cellfeed acls allow {name} read"
        f" topic {instance.datastore.name}"
    )


@users_app.command("passwd")
def change_password(name: NameArgument, run_dir: RunDirOption = DEFAULT_RUN_DIR) -> None:
    """Give a user another password, read as by add. Connections that are open stay."""
    password = _password()
    with opened_to("change password", name, run_dir) as instance:
        put_user(instance.datastore.state, name, password, is_new=False)
    console.print(f"user {name} has another password")


@users_app.command("remove")
def remove(name: NameArgument, run_dir: RunDirOption = DEFAULT_RUN_DIR) -> None:
    """Remove a user with the user's ACLs. Connections that are open may do nothing from then on.
    Removing the last user opens nothing: see cellfeed acls open."""
    with opened_to("remove user", name, run_dir) as instance:
        acls = remove_user(instance.datastore.state, name)
    console.print(f"user {name} and {acls} ACLs are removed")


@users_app.command("list")
def show_users(run_dir: RunDirOption = DEFAULT_RUN_DIR, as_json: JsonOption = False) -> None:
    """List users and the mechanisms that they can use."""
    with opened(run_dir) as instance:
        found: list[User] = list_users(instance.datastore.state)
        _warn_of_unreadable(instance)
    if as_json:
        for user in found:
            print_json({"name": user.name, "mechanisms": sorted(user.credentials)})
        return
    table = Table("user", "mechanisms", box=None)
    for user in found:
        table.add_row(user.name, ", ".join(["PLAIN", *sorted(user.credentials)]))
    console.print(table if found else "there are no users")


@acls_app.command("allow")
def allow_acl(
    principal: PrincipalArgument,
    operation: OperationArgument,
    kind: KindArgument,
    pattern: PatternArgument,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Allow a user something: allow billing read topic 'trips*'. In force a second later, on open
    connections as well."""
    act = f"{principal} {operation} {kind} {pattern}"
    with opened_to("allow", act, run_dir) as instance:
        allow(instance.datastore.state, Acl(principal, kind, pattern, operation))
    console.print(f"{principal} may {operation} {kind} {pattern}")


@acls_app.command("deny")
def deny_acl(
    principal: PrincipalArgument,
    operation: OperationArgument,
    kind: KindArgument,
    pattern: PatternArgument,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Deny a user something that another ACL allows: deny billing read column 'secret*'. A denial
    overrules every allowance. In force a second later."""
    act = f"{principal} {operation} {kind} {pattern}"
    with opened_to("deny", act, run_dir) as instance:
        allow(instance.datastore.state, Acl(principal, kind, pattern, operation, "deny"))
    console.print(f"{principal} may not {operation} {kind} {pattern}")


@acls_app.command("remove")
def remove_one_acl(
    principal: PrincipalArgument,
    operation: OperationArgument,
    kind: KindArgument,
    pattern: PatternArgument,
    denial: Annotated[
        bool, typer.Option("--deny", help="The ACL to remove is one that denies.")
    ] = False,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Remove ACLs, named in the words that added them."""
    effect: Effect = "deny" if denial else "allow"
    act = f"{principal} {effect} {operation} {kind} {pattern}"
    with opened_to("remove ACL", act, run_dir) as instance:
        remove_acl(instance.datastore.state, Acl(principal, kind, pattern, operation, effect))
    what = "is no longer denied to" if denial else "may no longer"
    console.print(f"{principal} {what} {operation} {kind} {pattern}")


@acls_app.command("open")
def open_to_everybody(run_dir: RunDirOption = DEFAULT_RUN_DIR) -> None:
    """Allow everything to everybody again, when no user, token or ACL is left."""
    with opened_to("open access", "everything", run_dir) as instance:
        open_access(instance.datastore.state)
    console.print("everybody may read every topic, and commit for every group")


@acls_app.command("list")
def show_acls(run_dir: RunDirOption = DEFAULT_RUN_DIR, as_json: JsonOption = False) -> None:
    """List the ACLs: users, and their rights."""
    with opened(run_dir) as instance:
        found = list_acls(instance.datastore.state)
        _warn_of_unreadable(instance)
    if as_json:
        for acl in found:
            print_json({"effect": acl.effect, **msgspec.to_builtins(acl)})
        return
    table = Table("user", "may", "", "pattern", box=None)
    for acl in found:
        may = acl.operation if acl.effect == "allow" else f"not {acl.operation}"
        table.add_row(acl.principal, may, acl.kind, acl.pattern)
    console.print(table if found else "there are no ACLs")


def _warn_of_unreadable(instance: Opened) -> None:
    for key in sorted(read_security(instance.datastore.state).unreadable):
        errors.print(f"{key} cannot be read: it lets nobody in, and allows nothing", style="red")


def _password() -> str:
    """Never from the command line, which every user of the machine can read."""
    if (from_variable := os.environ.get(PASSWORD_VARIABLE)) is not None:
        return from_variable
    if sys.stdin.isatty():
        return str(typer.prompt("password", hide_input=True, confirmation_prompt=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise InvalidRequest(
            f"no password: give it in the variable {PASSWORD_VARIABLE}, at the prompt, or as the"
            " first line of the standard input"
        )
    return line
