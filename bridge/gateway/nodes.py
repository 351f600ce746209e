"""The gateways of a datastore: node ids and addresses, in the state table.

    gateways/nodes/<name>       {"node_id", "listeners": {name: [host, port]}, "registry": [host,
                                port], "parks": [column]}; never deleted
    gateways/next_node_id       the next id to give out

A node id is given to a gateway's name once and is kept for ever: clients cache addresses by it, so
it must never come to mean another gateway. The membership
(:mod:`cellfeed.bridge.gateway.groups.slot_claims`) says which are alive, not this table.

Crash points: an id and the counter behind it are one commit, so an id is given out or is not. A
gateway that dies before it joins leaves an entry that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import Unavailable

_PREFIX: Final = "gateways/nodes/"
_COUNTER: Final = "gateways/next_node_id"
_TRIES_MAX: Final = 50
"""How often a compare-and-set is tried again: far more than gateways that start at the same
moment."""

Address = tuple[str, int]


class Node(msgspec.Struct, frozen=True):
    """A gateway. ``listeners``: the address that clients get, by the name of the listener that they
    came in through. ``parks``: its declared topics leave out cells of these columns that fit no
    version, also when the column's setting has changed since the gateway started."""

    node_id: int
    listeners: dict[str, Address]
    registry: Address
    parks: tuple[str, ...] = ()


_decode_node = msgspec.json.Decoder(Node)
_decode_number = msgspec.json.Decoder(int)
_encode = msgspec.json.Encoder()


def register(
    state: StateTable,
    name: str,
    listeners: Mapping[str, Address],
    registry: Address,
    parks: tuple[str, ...] = (),
) -> Node:
    """Writes where the gateway of that name is, with the columns that it parks, and gives it its
    node id: the one it has had before, or the next one, from 1 on."""
    key = f"{_PREFIX}{quote(name, safe='')}"
    for _ in range(_TRIES_MAX):
        entry, counter = state.get(key), state.get(_COUNTER)
        if entry is not None:
            node_id = _decode_node.decode(entry.value).node_id
            node = Node(node_id, dict(listeners), registry, parks)
            if state.commit({key: _encode.encode(node)}, expect={key: entry.version}) is not None:
                return node
            continue
        node_id = _decode_number.decode(counter.value) if counter else 1
        node = Node(node_id, dict(listeners), registry, parks)
        write: dict[str, bytes | None] = {
            key: _encode.encode(node),
            _COUNTER: _encode.encode(node.node_id + 1),
        }
        if (
            state.commit(write, expect={key: None, _COUNTER: counter.version if counter else None})
            is not None
        ):
            return node
    raise Unavailable(f"gateway {name!r} could not be given a node id: others are faster")


def all_nodes(state: StateTable) -> dict[str, Node]:
    """Every gateway that has ever been, by name."""
    return {
        unquote(entry.key.removeprefix(_PREFIX)): _decode_node.decode(entry.value)
        for entry in state.list(_PREFIX)
    }
