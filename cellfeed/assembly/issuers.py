"""The identity providers of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellfeed.config.model import Config

if TYPE_CHECKING:
    from cellfeed.store.security.signed_tokens import IssuedTokens


def issued_tokens(config: Config) -> IssuedTokens | None:
    """Verifies the tokens of the configuration's issuers; None where it has none. Raises
    InvalidRequest for keys that are neither a file nor an https address."""
    if not config.issuers:
        return None
    # Start-up: most instances have no issuer, and cryptography is slow to load.
    from cellfeed.store.security.signed_tokens import IssuedTokens, Issuer

    return IssuedTokens(
        [
            Issuer(
                each.issuer,
                each.audience,
                each.keys,
                each.principal_claim,
                each.principal_prefix,
                tuple(each.algorithms),
                each.leeway_s,
            )
            for each in config.issuers
        ]
    )
