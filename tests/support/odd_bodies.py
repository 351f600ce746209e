"""Bodies that a store keeps exactly, and bodies that JSON cannot carry."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

ODD_BODIES: list[dict[str, Any]] = [
    {},
    {"": ""},
    {'quote"and\\slash': "line\nbreak\x00nul"},
    {
        "emoji": "🚕",
        "combining": "e\u0301",
        "astral": "\U0010ffff",
        "bom": "\ufeff",
        "rtl": "\u202eabc",
    },
    {
        "min": -(1 << 63),
        "max": (1 << 64) - 1,
        "zero": 0,
        "float": 1e308,
        "tiny": 5e-324,
        "negative zero": -0.0,
    },
    {"nested": [[], {}, [None, True, False, {"a": [1.5, "x"]}]]},
    {"row_key": "not the key", "body": {"body": 1}, "cells": []},
    {"long": "x" * 200_000},
]


BAD_BODIES: list[object] = [
    None,
    [],
    "text",
    {"nan": math.nan},
    {"infinite": [math.inf]},
    {"too big": 1 << 64},
    {"too small": -(1 << 63) - 1},
    {"lone": "\ud800"},
    {"\udfff": 1},
    {1: "key is a number"},
    {"tuple": (1, 2)},
    {"set": {1}},
    {"bytes": b"x"},
    {"when": datetime(2020, 1, 1, tzinfo=UTC)},
]
