"""ZooKeeper URLs: their parts, and the refusals, which never show a password."""

from __future__ import annotations

import pytest

from cellfeed.bridge.coordination.zookeeper.paths import (
    Paths,
    birth_of,
    joined,
    quoted,
    unquoted,
    version_of,
)
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress, parse_zookeeper_url
from cellfeed.store.errors import InvalidRequest


def test_a_url_names_servers_chroot_credentials_and_tls() -> None:
    assert parse_zookeeper_url(
        "zookeeper://a.example:2181,b:2182,[::1]/feeds/cells/"
    ) == ZooKeeperAddress("a.example:2181,b:2182,[::1]:2181", "/feeds/cells")
    files = "ca=/etc/ca.pem&certificate=/etc/c.pem&key=/etc/k.pem"
    url = f"zookeeper://cell:p%40ss@a?tls=true&{files}&timeout_s=1.5"
    assert parse_zookeeper_url(url) == ZooKeeperAddress(
        "a:2181", "", "cell", "p@ss", True, "/etc/ca.pem", "/etc/c.pem", "/etc/k.pem", 1.5
    )


@pytest.mark.parametrize(
    "url",
    [
        "zookeeper://",
        "zookeeper://a:0",
        "zookeeper://a:99999",
        "zookeeper://a,,b",
        "zookeeper://secret@a:2181",
        "zookeeper://user:@a:2181",
        "zookeeper://user:secret:2181/x",
        "zookeeper://user:secret@a b:2181",
        "zookeeper://user:secret@a/../b",
        "zookeeper://user:secret@a/x//y",
        "zookeeper://user:secret@a?tls=maybe",
        "zookeeper://user:secret@a?ca=/x",
        "zookeeper://user:secret@a?color=red",
        "zookeeper://user:secret@a?timeout_s=0",
        "zookeeper://user:secret@a?timeout_s=nan",
        "zookeeper://user:secret@a#x",
        "zookeepers://user:secret@a",
        "zookeeper://user:secret@[a",
    ],
)
def test_a_wrong_url_is_refused_and_its_password_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidRequest, match="coordination") as refused:
        parse_zookeeper_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["g", ".", "..", "a/b", "é %2F", "...", "a.b@c", "\x00\x7f"])
def test_a_group_may_be_called_anything(name: str) -> None:
    part = quoted(name)
    assert unquoted(part) == name
    assert part not in (".", "..")
    assert part.isascii()
    assert not set(part) & set("/@\x00")
    assert Paths("/x").offset(name, "trips", 3) == f"/x/consumers/{part}/offsets/trips/3"


def test_numbers_rise_with_the_version_and_more_with_the_birth() -> None:
    assert joined(5, 0) < joined(5, 1) < joined(6, 0)
    assert (birth_of(joined(5, 7)), version_of(joined(5, 7))) == (5, 7)
