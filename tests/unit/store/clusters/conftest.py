"""A cluster of three nodes as values: a is master, b and c hold less."""

from __future__ import annotations

from typing import cast

import pytest

from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node import StorageNode
from tests.support.stand_in_nodes import Node


@pytest.fixture
def nodes() -> dict[str, Node]:
    return {name: Node(name) for name in "abc"}


@pytest.fixture
def cluster(nodes: dict[str, Node]) -> Cluster:
    made = Cluster("c1", [cast("StorageNode", node) for node in nodes.values()], [0])
    for name, held in (("a", 10), ("b", 9), ("c", 7)):
        nodes[name].says(held)
    return made
