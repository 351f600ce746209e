"""The APIs that the gateway speaks, by key. An API is one module ``api_<key>_<name>.py``, which
registers itself; an API that is not listed is not advertised."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Final

from cellfeed.bridge.gateway.apis.registry import APIS

for _module in iter_modules([str(Path(__file__).parent)]):
    if _module.name.startswith("api_"):
        import_module(f"{__package__}.{_module.name}")

__all__ = ["APIS", "FLEXIBLE_FROM"]

FLEXIBLE_FROM: Final[dict[int, int]] = {
    0: 9,  # produce
    1: 12,  # fetch
    2: 6,  # list offsets
    3: 9,  # metadata
    8: 8,  # offset commit
    9: 6,  # offset fetch
    10: 3,  # find coordinator
    11: 6,  # join group
    12: 4,  # heartbeat
    13: 4,  # leave group
    14: 4,  # sync group
    15: 5,  # describe groups
    16: 3,  # list groups
    17: 2,  # sasl handshake
    18: 3,  # api versions
    19: 5,  # create topics
    20: 4,  # delete topics
    21: 2,  # delete records
    22: 2,  # init producer id
    23: 4,  # offset for leader epoch
    29: 2,  # describe acls
    30: 2,  # create acls
    31: 2,  # delete acls
    32: 4,  # describe configs
    33: 2,  # alter configs
    35: 2,  # describe log dirs
    36: 2,  # sasl authenticate
    37: 2,  # create partitions
    42: 2,  # delete groups
    44: 1,  # incremental alter configs
    46: 0,  # list partition reassignments
    47: 1,  # offset delete
    48: 1,  # describe client quotas
    50: 0,  # describe user scram credentials
    60: 0,  # describe cluster
    61: 0,  # describe producers
    66: 0,  # list transactions
    68: 0,  # consumer group heartbeat
    74: 0,  # list config resources
}
"""From which version on an API's requests have tagged fields, as Kafka's protocol says. Written
down, since asking kio loads a hundred schemas: half a second of every gateway's start."""
