"""The TLS context of connections to a server."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path
from typing import Final

from cellfeed.store.engines.mysql.address import MySqlTls
from cellfeed.store.errors import StorageUnavailable

_KEPT: Final = 16


def tls_context(tls: MySqlTls) -> ssl.SSLContext:
    """A context that checks the server's certificate; made again when one of the files has
    changed, so that a renewed certificate counts from the next connection on. Raises
    StorageUnavailable for a file that cannot be read, or is none."""
    files = [each for each in (tls.ca, tls.certificate, tls.key) if each is not None]
    try:
        return _made(tls, tuple(Path(each).stat().st_mtime_ns for each in files))
    except (OSError, ssl.SSLError) as error:
        raise StorageUnavailable(
            f"no TLS context can be made of {', '.join(files) or 'the system authorities'}: {error}"
        ) from error


@lru_cache(maxsize=_KEPT)
def _made(tls: MySqlTls, _changed_at_ns: tuple[int, ...]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Servers make authorities for themselves without every extension that the strict form asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = tls.host_name
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context
