"""Znodes in memory, and the effect of one operation on them. Values only: the sessions, the lock
and the faults are the tree's (``zookeeper_tree.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.states import ZnodeStat

from cellfeed.bridge.coordination.zookeeper.client import Check, Create, Delete, Operation, Set

_ANY_VERSION: Final = -1

REFUSALS: Final = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
"""Errors of :func:`apply`."""


@dataclass(frozen=True)
class Znode:
    """``children_made``: how many children it ever had, which numbers the next sequential one."""

    value: bytes
    created_zxid: int
    changed_zxid: int
    created_ms: int
    changed_ms: int
    version: int = 0
    owner: int = 0
    children_made: int = 0


def apply(
    znodes: dict[str, Znode], operation: Operation, *, session: int, zxid: int, now_ms: int
) -> Any:
    """Changes ``znodes`` as the operation of that session says; its result, as kazoo has it. Raises
    one of ``REFUSALS``: the caller throws ``znodes`` away."""
    if isinstance(operation, Create):
        return _create(znodes, operation, session, zxid, now_ms)
    path = operation.path
    znode = znodes.get(path)
    if znode is None:
        raise NoNodeError
    if operation.version not in (_ANY_VERSION, znode.version):
        raise BadVersionError
    match operation:
        case Check():
            return True
        case Set(value=value):
            znodes[path] = replace(
                znode,
                value=value,
                version=znode.version + 1,
                changed_zxid=zxid,
                changed_ms=now_ms,
            )
            return stat(znodes, path)
        case Delete():
            if children(znodes, path):
                raise NotEmptyError
            del znodes[path]
            return True


def _create(
    znodes: dict[str, Znode], operation: Create, session: int, zxid: int, now_ms: int
) -> str:
    path = operation.path
    above = path.rpartition("/")[0] or "/"
    parent = znodes.get(above)
    if parent is None:
        raise NoNodeError
    path = f"{path}{parent.children_made:010d}" if operation.sequence else path
    if path in znodes:
        raise NodeExistsError
    znodes[above] = replace(parent, children_made=parent.children_made + 1)
    owner = session if operation.ephemeral else 0
    znodes[path] = Znode(operation.value, zxid, zxid, now_ms, now_ms, owner=owner)
    return path


def stat(znodes: Mapping[str, Znode], path: str) -> ZnodeStat:
    znode = znodes[path]
    return ZnodeStat(
        czxid=znode.created_zxid,
        mzxid=znode.changed_zxid,
        ctime=znode.created_ms,
        mtime=znode.changed_ms,
        version=znode.version,
        cversion=znode.children_made,
        aversion=0,
        ephemeralOwner=znode.owner,
        dataLength=len(znode.value),
        numChildren=len(children(znodes, path)),
        pzxid=znode.changed_zxid,
    )


def children(znodes: Mapping[str, Znode], path: str) -> list[str]:
    """The names below a path, without those further down."""
    prefix = path.rstrip("/") + "/"
    return [
        other[len(prefix) :]
        for other in znodes
        if other.startswith(prefix) and len(other) > len(prefix) and "/" not in other[len(prefix) :]
    ]
