"""Every alert fires for its fault, and not within its limit. The faults of the watchdog's test fire
theirs with the series that were scraped."""

from __future__ import annotations

import pytest

from cellfeed.status.causes import Cause
from tests.support.alert_rules import rules
from tests.support.promtool import Series, fired

pytestmark = pytest.mark.integration

BY_NAME = {each.alert: each for each in rules()}


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_an_alert_that_fires_once_for_several_consoles(cause: Cause) -> None:
    labels = {"job": "cellfeed", "kind": "trigger", "name": "billing", "cause": cause.value}
    consoles = [
        Series("cellfeed_stuck_seconds", {**labels, "instance": f"console-{n}"}, "0+60x120")
        for n in range(2)
    ]
    [name] = [each.alert for each in rules() if f'cause="{cause}"' in each.expr]
    [alert] = fired(consoles, name)
    assert alert == {**labels, "alertname": name} | BY_NAME[name].labels
    assert BY_NAME[name].page == f"docs/operate/alerts/{cause}.md"


HTTP = "cellfeed_http_requests_total"
FIRES: dict[str, tuple[list[Series], list[Series]]] = {
    "CellfeedStatusUnknown": (
        [Series("cellfeed_stuck_known", {}, "0x120")],
        [Series("cellfeed_stuck_known", {}, "1x120")],
    ),
    "CellfeedTargetDown": (
        [Series("up", {"job": "cellfeed-workers"}, "0x120")],
        [Series("up", {"job": "others"}, "0x120"), Series("up", {"job": "cellfeed"}, "1x120")],
    ),
    "CellfeedProcessUnready": (
        [Series("cellfeed_process_ready", {}, "0x120")],
        [Series("cellfeed_process_ready", {}, "1x120")],
    ),
    "CellfeedPutsFail": (
        [
            Series("cellfeed_http_cells_put_total", {"outcome": "stored"}, "0+100x120"),
            Series("cellfeed_http_cells_put_total", {"outcome": "unknown"}, "0+2x120"),
        ],
        [
            Series("cellfeed_http_cells_put_total", {"outcome": "stored"}, "0+100x120"),
            Series("cellfeed_http_cells_put_total", {"outcome": "conflict"}, "0+90x120"),
            Series("cellfeed_http_cells_put_total", {"outcome": "failed"}, "0x120"),
        ],
    ),
    "CellfeedPutsSlow": (
        [
            Series("cellfeed_http_put_seconds_bucket", {"le": "1.0"}, "0+90x120"),
            Series("cellfeed_http_put_seconds_bucket", {"le": "5.0"}, "0+100x120"),
            Series("cellfeed_http_put_seconds_bucket", {"le": "+Inf"}, "0+100x120"),
        ],
        [
            Series("cellfeed_http_put_seconds_bucket", {"le": "1.0"}, "0+100x120"),
            Series("cellfeed_http_put_seconds_bucket", {"le": "+Inf"}, "0+100x120"),
        ],
    ),
    "CellfeedRequestsFail": (
        [
            Series(HTTP, {"route": "get_row", "status": "200"}, "0+100x120"),
            Series(HTTP, {"route": "get_row", "status": "503"}, "0+2x120"),
        ],
        [
            Series(HTTP, {"route": "get_row", "status": "200"}, "0+100x120"),
            Series(HTTP, {"route": "get_row", "status": "404"}, "0+90x120"),
        ],
    ),
    "CellfeedKafkaRequestsFail": (
        [
            Series("cellfeed_gateway_request_seconds_count", {"api": "fetch"}, "0+100x120"),
            Series(
                "cellfeed_gateway_request_errors_total",
                {"api": "fetch", "error": "offset_out_of_range"},
                "0+2x120",
            ),
        ],
        [Series("cellfeed_gateway_request_seconds_count", {"api": "fetch"}, "0+100x120")],
    ),
    "CellfeedFarBehind": (
        [Series("cellfeed_trigger_seconds_behind", {"group": "billing"}, "301x120")],
        [Series("cellfeed_trigger_seconds_behind", {"group": "billing"}, "300x120")],
    ),
    "CellfeedReplicationBehind": (
        [Series("cellfeed_cluster_watermark_lag_seconds", {"cluster": "c1"}, "31x120")],
        [Series("cellfeed_cluster_watermark_lag_seconds", {"cluster": "c1"}, "30x120")],
    ),
    "CellfeedBackupFails": (
        [Series("cellfeed_backup_failing", {"name": "backups"}, "1x120")],
        [Series("cellfeed_backup_failing", {"name": "backups"}, "0x120")],
    ),
    "CellfeedDiskLow": (
        [
            Series("cellfeed_disk_free_bytes", {"place": "store"}, "4x120"),
            Series("cellfeed_disk_size_bytes", {"place": "store"}, "100x120"),
        ],
        [
            Series("cellfeed_disk_free_bytes", {"place": "store"}, "5x120"),
            Series("cellfeed_disk_size_bytes", {"place": "store"}, "100x120"),
        ],
    ),
    "CellfeedKeptBlocksDamaged": (
        [Series("cellfeed_gateway_block_files_total", {"event": "damaged"}, "0x100 1x20")],
        [Series("cellfeed_gateway_block_files_total", {"event": "read"}, "0+9x120")],
    ),
    "CellfeedLakeStands": (
        [Series("cellfeed_lake_stopped_partitions", {}, "1x120")],
        [
            Series("cellfeed_lake_stopped_partitions", {}, "0x120"),
            Series("cellfeed_lake_commits_fail", {}, "0x120"),
        ],
    ),
}
"""Series that fire an alert, and such that do not."""


@pytest.mark.parametrize("alert", sorted(FIRES))
def test_an_alert_over_plain_metrics_fires_past_its_limit_alone(alert: str) -> None:
    past, within = FIRES[alert]
    [found] = fired(past, alert)
    assert found["alertname"] == alert
    assert fired(within, alert) == []


def test_no_alert_is_left_out_here() -> None:
    assert {each.alert for each in rules() if "cause=" not in each.expr} == FIRES.keys()
