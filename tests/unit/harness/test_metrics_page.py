"""Every metric that the product exports is in an operator's page with its type, no page invents
one, and all names follow one rule."""

from __future__ import annotations

import pytest

from tests.support.metric_names import PAGES, exported, listed, why_not

EXPORTED = exported()


def test_every_metric_is_in_a_page_and_every_one_in_a_page_is_exported() -> None:
    assert len(EXPORTED) > 40
    named = listed()
    assert [each for each in EXPORTED if not any(map(each.is_called, named))] == []
    assert [name for name in named if not any(each.is_called(name) for each in EXPORTED)] == []


def test_each_page_says_the_type_of_a_metric_that_is_no_gauge() -> None:
    rows = [
        (line, name)
        for page in PAGES
        for line in page.read_text().splitlines()
        for name in listed(line)
    ]
    wrong = [
        name
        for line, name in rows
        for each in EXPORTED
        if each.is_called(name) and (each.kind == "histogram") != ("| histogram: " in line)
    ]
    assert wrong == []


@pytest.mark.parametrize("metric", EXPORTED, ids=lambda each: each.name)
def test_a_metrics_name_follows_the_rule(metric: object) -> None:
    assert why_not(metric) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cellfeed_http_put_ms", "histogram"),
        ("cellfeed_http_wait_milliseconds", "gauge"),
        ("cellfeed_disk_free_kb", "gauge"),
        ("cellfeed_http_requests_total", "counter"),
        ("cellfeed_http_requests_total", "gauge"),
        ("cellfeed_http_put_duration", "histogram"),
        ("cellfeed_Http_requests", "counter"),
        ("cellfeed_uptime", "gauge"),
        ("http_requests", "counter"),
    ],
)
def test_a_name_against_the_rule_is_found(name: str, kind: str) -> None:
    from tests.support.metric_names import Exported

    assert why_not(Exported(name, kind)) != ""
