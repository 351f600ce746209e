"""The alert rules of ``deploy/monitoring``."""

from __future__ import annotations

from typing import NamedTuple

import yaml

from tests.support.promtool import RULES


class Rule(NamedTuple):
    """``page``: the steps, as a path from the repository's root."""

    alert: str
    expr: str
    labels: dict[str, str]
    page: str


def rules() -> list[Rule]:
    """The alerts of the file."""
    given = yaml.safe_load(RULES.read_text())
    return [
        Rule(each["alert"], each["expr"], each["labels"], each["annotations"]["runbook_url"])
        for group in given["groups"]
        for each in group["rules"]
    ]
