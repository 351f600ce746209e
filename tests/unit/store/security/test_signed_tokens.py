"""Tokens that an identity provider signed: the ones that count, and those of an attacker."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.security import signed_tokens
from cellfeed.store.security.scram import AuthenticationFailed
from cellfeed.store.security.signed_tokens import IssuedTokens, Issuer

ISSUER, AUDIENCE = "https://id.example/", "cellfeed"


class Provider(NamedTuple):
    key: RSAKey
    path: Path
    issuer: Issuer
    tokens: IssuedTokens

    def publish(self, *keys: Any) -> None:
        public = KeySet(list(keys)).as_dict(private=False)
        self.path.write_text(json.dumps(public))

    def token(self, key: Any = None, alg: str = "RS256", **claims: object) -> str:
        used = key or self.key
        whole = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(time.time()) + 60}
        whole |= claims
        kept = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode({"alg": alg, "kid": used.kid}, kept, used, algorithms=[alg])

    def principal(self, text: str) -> str:
        return asyncio.run(self.tokens.principal(text))[0]


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    key = RSAKey.generate_key(2048, {"kid": "one"})
    path = tmp_path / "jwks.json"
    issuer = Issuer(ISSUER, AUDIENCE, str(path))
    made = Provider(key, path, issuer, IssuedTokens([issuer]))
    made.publish(key)
    return made


def raw(head: dict[str, object], claims: dict[str, object], signature: str = "") -> str:
    parts = [
        urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode()
        for each in (head, claims)
    ]
    return ".".join([*parts, signature])


def signed_by_secret(head: dict[str, object], claims: dict[str, object], secret: bytes) -> str:
    text = raw(head, claims).removesuffix(".")
    signature = hmac.digest(secret, text.encode(), "sha256")
    return f"{text}.{urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def counted(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places that keys are read from."""
    read: list[str] = []
    kept = provider.issuer.read

    def reading(where: str) -> bytes:
        read.append(where)
        return kept(where)

    monkeypatch.setattr(provider.issuer, "read", reading)
    return read


def test_a_token_of_the_provider_names_its_principal_and_its_end(provider: Provider) -> None:
    at = int(time.time()) + 60
    name, ends_s = asyncio.run(provider.tokens.principal(provider.token(exp=at)))
    assert (name, ends_s) == ("alice", at + 10)
    several = provider.token(aud=["other", AUDIENCE])
    assert provider.principal(several) == "alice"


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": int(time.time()) - 3_600},
        {"exp": None},
        {"nbf": int(time.time()) + 3_600},
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://evil.example/"},
        {"iss": None},
        {"sub": None},
        {"sub": 7},
        {"sub": ""},
        {"sub": "*"},
        {"sub": "ANONYMOUS"},
        {"sub": "a\nb"},
        {"sub": "\u202ealice"},
    ],
)
def test_a_claim_that_is_missing_or_wrong_lets_nobody_in(
    provider: Provider, claims: dict[str, Any]
) -> None:
    with pytest.raises(AuthenticationFailed):
        provider.principal(provider.token(**claims))


def test_clocks_may_differ_by_the_leeway_alone(provider: Provider) -> None:
    now = int(time.time())
    assert provider.principal(provider.token(exp=now - 3, nbf=now + 3)) == "alice"
    with pytest.raises(AuthenticationFailed):
        provider.principal(provider.token(exp=now - 30))


def test_neither_no_algorithm_nor_a_public_key_as_a_secret_counts(provider: Provider) -> None:
    claims: dict[str, object] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "exp": int(time.time()) + 60,
    }
    pem = provider.key.as_pem(private=False)
    forged = [
        raw({"alg": "none"}, claims),
        raw({"alg": "None", "kid": "one"}, claims),
        raw({"kid": "one"}, claims),
        signed_by_secret({"alg": "HS256", "kid": "one"}, claims, pem),
    ]
    own = RSAKey.generate_key(2048, {"kid": "one"})
    forged.append(provider.token(own))
    embedded = {"alg": "RS256", "jwk": own.as_dict(private=False), "jku": "https://evil.example/"}
    forged.append(jwt.encode(embedded, dict(claims), own))
    whole = provider.token()
    forged += [whole[:-8], whole + ".x", whole.replace(".", "..", 1), "..", "a.b.c", "é.é.é"]
    for each in forged:
        with pytest.raises(AuthenticationFailed):
            provider.principal(each)


def test_an_algorithm_that_is_not_in_the_configuration_does_not_count(provider: Provider) -> None:
    key = ECKey.generate_key("P-384", {"kid": "curve"})
    provider.publish(provider.key, key)
    with pytest.raises(AuthenticationFailed, match="another algorithm"):
        provider.principal(provider.token(key, "ES384"))


@pytest.mark.parametrize("kid", ["../../etc/passwd", "https://evil.example/", "", "two", None, 7])
def test_a_key_id_opens_no_file(
    provider: Provider, kid: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = counted(provider, monkeypatch)
    text = raw({"alg": "RS256", "kid": kid}, {"iss": ISSUER}, "AAAA")
    with pytest.raises(AuthenticationFailed):
        provider.principal(text)
    assert set(read) == {str(provider.path)}


def test_a_new_key_is_found_by_its_id_and_an_old_one_ends(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = counted(provider, monkeypatch)
    old = provider.token()
    assert provider.principal(old) == "alice"
    assert provider.principal(old) == "alice"
    assert len(reads) == 1, "keys are remembered"
    new = RSAKey.generate_key(2048, {"kid": "two"})
    provider.publish(new)
    with pytest.raises(AuthenticationFailed):
        provider.principal(provider.token(new))
    assert len(reads) == 1, "unknown ids cause no read at once"
    monkeypatch.setattr(signed_tokens, "KEYS_PAUSE_S", 0.0)
    assert provider.principal(provider.token(new)) == "alice"
    with pytest.raises(AuthenticationFailed):
        provider.principal(old)


def test_keys_that_cannot_be_read_leave_those_of_before(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = provider.token()
    assert provider.principal(text) == "alice"
    monkeypatch.setattr(signed_tokens, "KEYS_PAUSE_S", 0.0)
    monkeypatch.setattr(signed_tokens, "KEYS_KEPT_S", -1.0)
    for broken in ("", "{", "[]", '{"keys": 3}', '{"keys": [{"kty": "RSA"}]}'):
        provider.path.write_text(broken)
        assert provider.principal(text) == "alice"
    monkeypatch.setattr(signed_tokens, "KEYS_LAST_S", 0.0)
    with pytest.raises(AuthenticationFailed, match="cannot be read"):
        provider.principal(text)


def test_a_symmetric_key_among_the_published_ones_is_passed_over(provider: Provider) -> None:
    secret = OctKey.import_key("public for everybody, sadly enough", {"kid": "shared"})
    document = KeySet([provider.key]).as_dict(private=False)
    document["keys"].append(secret.as_dict(private=True))
    provider.path.write_text(json.dumps(document))
    assert provider.principal(provider.token()) == "alice"
    with pytest.raises(AuthenticationFailed):
        provider.principal(provider.token(secret, "HS256"))


def test_another_claim_and_a_prefix_name_the_principal(provider: Provider) -> None:
    provider.issuer.principal_claim = "email"
    provider.issuer.principal_prefix = "sso:"
    assert provider.principal(provider.token(email="a@b.example")) == "sso:a@b.example"


@pytest.mark.parametrize("where", ["http://id.example/keys", "ftp://x/y", "file:///etc/passwd"])
def test_keys_come_from_a_file_or_over_https(where: str) -> None:
    with pytest.raises(InvalidRequest, match="neither a file nor an https address"):
        Issuer(ISSUER, AUDIENCE, where)
