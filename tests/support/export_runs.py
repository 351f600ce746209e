"""Exports and topics that the tests of exports share."""

from __future__ import annotations

SHARDS = 4
