"""SCRAM as RFC 7677 has it, and all else that a peer may send: an answer, or AuthenticationFailed,
never another error."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.security.scram import (
    AuthenticationFailed,
    Credential,
    ScramExchange,
    is_password,
    make_credential,
    no_credential,
    plain_message,
)

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = make_credential("SCRAM-SHA-256", "pencil", SALT, 4096)
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(credential: Credential = PENCIL) -> ScramExchange:
    return ScramExchange("SCRAM-SHA-256", lambda _: credential, SERVER_NONCE)


def test_the_example_of_rfc_7677() -> None:
    scram = exchange()
    assert scram.first(CLIENT_FIRST) == SERVER_FIRST
    assert scram.final(CLIENT_FINAL) == SERVER_FINAL
    assert scram.user == "user"
    with pytest.raises(AuthenticationFailed):
        scram.final(CLIENT_FINAL)


@pytest.mark.parametrize(
    "changed",
    [
        CLIENT_FINAL.replace(b"dHzb", b"AAAA"),
        CLIENT_FINAL.replace(b"biws", b"eSws"),
        CLIENT_FINAL.replace(b"rOpr", b"xxxx"),
    ],
)
def test_a_proof_a_binding_or_a_nonce_that_does_not_fit_is_refused(changed: bytes) -> None:
    scram = exchange()
    scram.first(CLIENT_FIRST)
    with pytest.raises(AuthenticationFailed):
        scram.final(changed)


def test_an_unknown_user_gets_the_same_first_answer_and_fails_at_the_proof() -> None:
    nobody = no_credential("SCRAM-SHA-256", "user", b"secret")
    assert nobody.salt == no_credential("SCRAM-SHA-256", "user", b"secret").salt, (
        "asked twice, told the same"
    )
    scram = exchange(nobody)
    assert scram.first(CLIENT_FIRST).startswith(b"r=rOprNGfwEbeRWgbNEkqO%hvY")
    with pytest.raises(AuthenticationFailed):
        scram.final(CLIENT_FINAL)
    assert not is_password("SCRAM-SHA-256", nobody, "pencil")


def test_names_are_unescaped_and_nobody_acts_for_another() -> None:
    scram = exchange()
    scram.first(b"n,,n=a=2Cb=3Dc,r=nonce")
    assert scram.user == "a,b=c"
    exchange().first(b"n,a=user,n=user,r=nonce,tokenauth=false")
    for refused in (
        b"n,a=root,n=user,r=nonce",
        b"p=tls-unique,,n=user,r=x",
        b"n,,m=ext,n=user,r=x",
        b"n,,n=a=2Xb,r=x",
        b"n,,n=,r=x",
        b"n,,n=user,r=",
        b"",
        b"\xff",
    ):
        with pytest.raises(AuthenticationFailed):
            exchange().first(refused)


def test_a_password_is_verified_by_the_keys_and_no_credential_shows_them() -> None:
    assert is_password("SCRAM-SHA-256", PENCIL, "pencil")
    assert not is_password("SCRAM-SHA-256", PENCIL, "pencils")
    assert repr(PENCIL) == "Credential(iterations=4096)"
    assert plain_message(b"\0user\0pen,cil") == ("user", "pen,cil")
    for refused in (
        b"",
        b"user",
        b"root\0user\0x",
        b"\0\0x",
        b"\0user\0",
        b"a\0b\0c\0d",
        b"\xff\0a\0b",
    ):
        with pytest.raises(AuthenticationFailed):
            plain_message(refused)


@given(
    st.binary(max_size=80) | st.text("nyp=,ra:cvsi\0=2C", max_size=60).map(str.encode),
    st.binary(max_size=80) | st.text("cbiws=,rp+/", max_size=60).map(str.encode),
)
def test_a_malformed_scram_message_is_refused_without_an_effect(first: bytes, last: bytes) -> None:
    scram = exchange()
    try:
        scram.first(first)
    except AuthenticationFailed:
        scram = exchange()
        scram.first(CLIENT_FIRST)
    with pytest.raises(AuthenticationFailed):
        scram.final(last)
    with pytest.raises(AuthenticationFailed):
        plain_message(first.replace(b"\0", b""))


@given(st.binary(max_size=40))
def test_no_proof_but_the_right_one_is_taken(proof: bytes) -> None:
    scram = exchange()
    scram.first(CLIENT_FIRST)
    with pytest.raises(AuthenticationFailed):
        scram.final(CLIENT_FINAL.rpartition(b"p=")[0] + b"p=" + b64encode(proof))


@pytest.mark.parametrize(
    "first",
    [b"n,,x=user,r=nonce", b"n,,n=user,x=nonce", b"n,,n=user", b"n,x=user,n=user,r=nonce", b"n,"],
)
def test_a_first_message_has_a_name_and_a_nonce_in_their_places(first: bytes) -> None:
    scram = exchange()
    with pytest.raises(AuthenticationFailed):
        scram.first(first)
    assert scram.user == ""
    with pytest.raises(AuthenticationFailed, match="without a first one"):
        scram.final(CLIENT_FINAL)


@pytest.mark.parametrize(
    "last",
    [
        CLIENT_FINAL.replace(b"c=biws,", b"c=biws,=x,"),
        CLIENT_FINAL.replace(b"c=biws,", b"c=biws,x,"),
        CLIENT_FINAL.partition(b",p=")[0],
        b",p=" + CLIENT_FINAL.rpartition(b",p=")[2],
        CLIENT_FINAL + b"=",
        CLIENT_FINAL.replace(b"dHzb", b"d!Hzb"),
        CLIENT_FINAL[:-4],
    ],
)
def test_a_last_message_of_another_form_is_refused(last: bytes) -> None:
    scram = exchange()
    scram.first(CLIENT_FIRST)
    with pytest.raises(AuthenticationFailed):
        scram.final(last)


@pytest.mark.parametrize("without_proof", [b"c=eSws,r=clientserver", b"c=biws,r=clientserver2"])
def test_the_channel_binding_and_the_nonce_are_those_of_the_first_message(
    without_proof: bytes,
) -> None:
    """The proof fits; only the binding is another one, as of a client that was talked down, or the
    nonce, as of a message that was sent before."""
    scram = ScramExchange("SCRAM-SHA-256", lambda _: PENCIL, "server")
    first = b"n=user,r=client"
    challenge = scram.first(b"n,," + first)
    signed = b",".join((first, challenge, without_proof))
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(PENCIL.stored_key, signed, "sha256")
    proof = b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    with pytest.raises(AuthenticationFailed, match="channel binding"):
        scram.final(without_proof + b",p=" + proof)
