"""The calls of a datastore (:mod:`cellfeed.store.api`). These tests import only the client, so that
they run where nothing else is installed (``tests/integration/cli/test_client_alone.py``)."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest


@pytest.fixture
def row() -> UUID:
    return uuid4()
