"""Requests on the paths that are answered in front of Litestar, for another datastore or by another
method: Litestar cannot check them."""

from __future__ import annotations

import re
from typing import Final

from cellfeed.store.errors import MethodNotAllowed, UnknownDatastore

BARE_PATH: Final = re.compile(r"/v1/([^/]*)/(cells?|follow|wakeups|indexes/[^/]*/query)")
"""Paths whose POST is answered before Litestar is asked."""


def refuse_misdirected(path: str, method: str, datastore: str) -> None:
    """Raises UnknownDatastore, MethodNotAllowed. ``datastore``: the one that is served."""
    found = BARE_PATH.fullmatch(path)
    if found is None:
        return
    if method == "POST":
        raise UnknownDatastore(
            f"datastore {ascii(found[1])[:80]} is not served here; this worker serves {datastore!r}"
        )
    if found[2] != "cell":
        raise MethodNotAllowed(f"{method} is not a method of {ascii(path)[:200]}; POST is")
