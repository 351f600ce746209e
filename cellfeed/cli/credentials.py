"""Options in front of every command that speaks to workers: how it shows who it is, and whom it
believes. A token is never an argument, which every user of the machine could read: it comes from
the variable CELLFEED_TOKEN, or from a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from cellfeed.store.http.calls.access import AccessOptions

TOKEN_VARIABLE: Final = "CELLFEED_TOKEN"  # noqa: S105 (the name of a variable)

chosen: AccessOptions = {}
"""Those of this command."""

TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="CELLFEED_TOKEN_FILE",
        metavar="FILE",
        help="A file with the token for the workers; CELLFEED_TOKEN has the token itself.",
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ssl-ca",
        envvar="CELLFEED_SSL_CA",
        metavar="FILE",
        help="The authorities of the workers' certificates, PEM; the system's by default.",
    ),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--ssl-certificate",
        envvar="CELLFEED_SSL_CERTIFICATE",
        metavar="FILE",
        help="The command's own certificate, PEM, for workers that ask for one.",
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--ssl-key",
        envvar="CELLFEED_SSL_KEY",
        metavar="FILE",
        help="The key of that certificate, PEM.",
    ),
]


def choose(
    token_file: Path | None, ca: Path | None, certificate: Path | None, key: Path | None
) -> None:
    """Takes the options of this command, and the token of the environment."""
    for name in list(chosen):
        chosen.pop(name)  # type: ignore[misc]
    token = os.environ.get(TOKEN_VARIABLE)
    if token_file is not None:
        chosen["token_file"] = token_file
    elif token:
        chosen["token"] = token
    if ca is not None:
        chosen["ssl_ca"] = ca
    if certificate is not None:
        chosen["ssl_certificate"] = certificate
    if key is not None:
        chosen["ssl_key"] = key
