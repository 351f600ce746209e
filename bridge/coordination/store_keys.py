"""Where coordination in the store keeps its entries: keys below ``groups/`` and ``offsets/``."""

from __future__ import annotations

from urllib.parse import quote, unquote


def _quoted(name: str) -> str:
    return quote(name, safe="")


def last_part(key: str) -> str:
    return unquote(key.rpartition("/")[2])


def member_key(group: str, member: str) -> str:
    return f"groups/{_quoted(group)}/members/{_quoted(member)}"


def leases_prefix(group: str) -> str:
    return f"groups/{_quoted(group)}/leases/"


def lease_key(group: str, member: str) -> str:
    return leases_prefix(group) + _quoted(member)


def leader_key(group: str) -> str:
    return f"groups/{_quoted(group)}/leader"


def assignment_key(group: str) -> str:
    return f"groups/{_quoted(group)}/assignment"


def claims_prefix(group: str, topic: str) -> str:
    return f"groups/{_quoted(group)}/claims/{_quoted(topic)}/"


def claim_key(group: str, topic: str, partition: int) -> str:
    return f"{claims_prefix(group, topic)}{partition}"


def offsets_prefix(group: str) -> str:
    return f"offsets/{_quoted(group)}/"


def offset_key(group: str, topic: str, partition: int) -> str:
    return f"{offsets_prefix(group)}{_quoted(topic)}/{partition}"
