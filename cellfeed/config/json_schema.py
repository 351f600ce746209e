"""The configuration file's JSON Schema, derived from the types that read it, for editors and other
tools.

``python -m cellfeed.config.json_schema > schemas/json/config.schema.json`` writes it again; a test
holds the two together.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import msgspec

from cellfeed.config.model import Config

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """The schema as it follows from :class:`cellfeed.config.model.Config`."""
    return {"$schema": DIALECT, "title": "cellfeed configuration", **msgspec.json.schema(Config)}


if __name__ == "__main__":
    sys.stdout.write(
        msgspec.json.format(msgspec.json.encode(config_schema()), indent=2).decode() + "\n"
    )
