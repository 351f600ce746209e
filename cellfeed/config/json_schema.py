"""The configuration file's JSON Schema, derived from the types that read it, for editors and other
tools.

``python -m cellfeed.config.json_schema > schemas/json/config.schema.json`` writes it again; a test
holds the two together.
"""

from __future__ import annotations

import sys
from inspect import cleandoc
from typing import Any, Final

import msgspec

from cellfeed.config.model import Config

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """The schema as it follows from :class:`cellfeed.config.model.Config`."""
    schema = msgspec.json.schema(Config)
    for each in schema["$defs"].values():
        if "description" in each:
            each["description"] = cleandoc(each["description"])  # as Python 3.13 has docstrings
    return {"$schema": DIALECT, "title": "cellfeed configuration", **schema}


if __name__ == "__main__":
    sys.stdout.write(
        msgspec.json.format(msgspec.json.encode(config_schema()), indent=2).decode() + "\n"
    )
