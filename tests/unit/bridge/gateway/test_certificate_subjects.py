"""The principal of a client's certificate: no two subjects have the same one."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.security.subject import subject_principal

KINDS = (
    ("commonName", NameOID.COMMON_NAME),
    ("organizationName", NameOID.ORGANIZATION_NAME),
    ("organizationalUnitName", NameOID.ORGANIZATIONAL_UNIT_NAME),
    ("localityName", NameOID.LOCALITY_NAME),
    ("stateOrProvinceName", NameOID.STATE_OR_PROVINCE_NAME),
    ("streetAddress", NameOID.STREET_ADDRESS),
    ("domainComponent", NameOID.DOMAIN_COMPONENT),
    ("userId", NameOID.USER_ID),
)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12)
SUBJECTS = st.lists(
    st.lists(st.tuples(st.sampled_from(KINDS), VALUES), min_size=1, max_size=2, unique_by=str),
    min_size=1,
    max_size=3,
)


def as_python(subject: list[list[tuple[Any, str]]]) -> dict[str, object]:
    return {"subject": tuple(tuple((kind[0], value) for kind, value in part) for part in subject)}


def test_subjects_are_written_in_kafkas_form() -> None:
    parts = ((("organizationName", "example"),), (("commonName", "billing"),))
    assert subject_principal({"subject": parts}) == "CN=billing,O=example"


@pytest.mark.parametrize("certificate", [None, {}, {"subject": ()}, {"subject": "CN=billing"}])
def test_without_a_subject_there_is_no_principal(certificate: dict[str, object] | None) -> None:
    assert subject_principal(certificate) is None


def test_a_separator_within_a_value_gives_nobody_the_rights_of_another() -> None:
    forged = [
        ((("commonName", "billing,O=example"),),),
        ((("organizationName", "example"), ("commonName", "billing")),),
        ((("commonName", "billing"), ("organizationName", "example")),),
    ]
    assert [subject_principal({"subject": each}) for each in forged] == [
        "CN=billing\\,O=example",
        "O=example+CN=billing",
        "CN=billing+O=example",
    ]


def test_line_ends_and_other_letters_are_written_so_that_a_log_has_one_line() -> None:
    subject = ((("commonName", "Zoë\n\x00"),),)
    assert subject_principal({"subject": subject}) == "CN=Zoë\\0A\\00"


@given(SUBJECTS)
def test_subjects_have_the_form_of_the_cryptography_library(
    subject: list[list[tuple[Any, str]]],
) -> None:
    name = x509.Name(
        x509.RelativeDistinguishedName([x509.NameAttribute(kind[1], value) for kind, value in part])
        for part in subject
    )
    assert subject_principal(as_python(subject)) == name.rfc4514_string()


@given(SUBJECTS, SUBJECTS)
def test_two_subjects_have_two_principals(
    one: list[list[tuple[Any, str]]], other: list[list[tuple[Any, str]]]
) -> None:
    same = as_python(one) == as_python(other)
    assert (subject_principal(as_python(one)) == subject_principal(as_python(other))) is same


def test_the_subject_of_a_connections_certificate_is_read_in_any_encoding(tmp_path: Path) -> None:
    """Through OpenSSL, not by values that a test has written."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "billing,O=example")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "client.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(file)
    [certificate] = context.get_ca_certs()
    assert subject_principal(dict(certificate)) == "CN=billing\\,O=example"
