"""Each right decides about the cells on the console's pages, and about its forms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from uuid import UUID

import pytest

from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.console.sight import seen
from cellfeed.status.causes import Cause
from cellfeed.status.stuck_part import Stuck
from cellfeed.store.security.callers import Caller
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.tokens import list_tokens
from cellfeed.store.security.users import allow, read_security
from tests.support.console_thread import Browser, RunningConsole, running_console
from tests.support.parked import parked_cell

pytestmark = pytest.mark.integration

KEY = UUID(int=5)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("console"), tls=False) as running:
        datastore = running.datastore
        datastore.put_cell(KEY, "OPEN", 1, {"note": "for all"})
        datastore.put_cell(KEY, "PAY", 1, {"card": "4111"})
        parked = [
            parked_cell(
                datastore.shard_of(KEY),
                1,
                group=group,
                topic=datastore.name,
                row_key=str(KEY),
                column_name="PAY",
                error="ValueError: 4111",
                attempts=2,
            )
            for group in ("billing", "others")
        ]
        for cell in parked:
            datastore.state.commit(dict(ParkedCells(datastore.state).entry(cell)))
        yield running


def visitor(console: RunningConsole, principal: str, *rights: tuple[str, str, str]) -> Browser:
    browser = console.browser()
    browser.log_in(console.token(principal, *rights))
    return browser


def test_a_reader_of_one_column_sees_cells_of_that_column_alone(console: RunningConsole) -> None:
    browser = visitor(console, "clerk", ("read", "column", "OPEN"))
    for path in ("/log", f"/row?key={KEY}", f"/log?shard={console.datastore.shard_of(KEY)}"):
        text = browser.get(path).text
        assert "for all" in text, path
        assert "4111" not in text, path
    assert "4111" not in browser.get("/parked").text
    assert browser.get("/cluster").status == 403
    assert browser.send("/query", {"sql": "SELECT 1", "table": "lake"}, page="/put").status == 403


def test_a_group_is_changed_by_those_alone_who_may_operate_it(console: RunningConsole) -> None:
    name = console.datastore.name
    reader = visitor(console, "reader", ("read", "datastore", name))
    text = reader.get("/parked").text
    assert "4111" in text
    assert 'type="checkbox"' not in text
    [cell] = {each.cell_id for each in ParkedCells(console.datastore.state).all("billing")}
    form = {"cell": f"{cell} billing", "reason": "no"}
    for path in ("/parked/retry", "/parked/skip"):
        answer = reader.send(path, form, page="/put")
        assert (answer.status, "no right to operate" in answer.text) == (403, True)
    for path in ("/groups/pause", "/groups/resume", "/groups/reset"):
        asked = {"group": "billing", "reason": "no", "exactly": "0:0"}
        assert reader.send(path, asked, page="/put").status == 403
    assert reader.get("/groups/reset/preview?group=billing&to=earliest").status == 403

    biller = visitor(console, "biller", ("operate", "group", "billing"), ("read", "column", "PAY"))
    assert biller.get("/parked").text.count('type="checkbox"') == 1
    assert biller.send("/parked/skip", {**form, "cell": f"{cell} others"}, "/put").status == 403
    assert biller.send("/parked/skip", {**form, "reason": "a bad card"}, "/put").status == 303
    [skipped] = ParkedCells(console.datastore.state).skipped("billing")
    assert skipped.skipped_because == "a bad card (biller (console))"
    assert len(ParkedCells(console.datastore.state).all("others")) == 1
    lines = [json.loads(each) for each in console.audit_lines().splitlines()]
    said = [(e["who"], e["result"]) for e in lines if e["did"] == "skip parked cell"]
    assert said == [("biller", "begun"), ("biller", "done")]


def test_parts_that_stand_still_are_shown_by_rights(console: RunningConsole) -> None:
    parts = [
        Stuck("trigger", "billing", Cause.PAUSED, "x", "y"),
        Stuck("export", "copy", Cause.PAUSED, "x", "y"),
        Stuck("storage", "datastore", Cause.STORAGE_AWAY, "x", "y"),
    ]
    table, name = console.datastore.state, console.datastore.name
    allow(table, Acl("one", "group", "export/copy", "read"))
    allow(table, Acl("every", "datastore", name, "put"))
    allow(table, Acl("every", "group", "billing", "describe", effect="deny"))
    security = read_security(table)

    def of(principal: str) -> list[str]:
        caller = Caller(principal, "token", name, security, lambda _: True)
        return [each.name for each in seen(caller, parts)]

    assert of("one") == ["copy"]
    assert of("every") == ["copy", "datastore"]
    assert of("nobody") == []


def test_a_cell_is_put_after_a_preview_by_those_who_may(console: RunningConsole) -> None:
    writer = visitor(console, "writer", ("put", "column", "NOTE"), ("read", "column", "NOTE"))
    form = {"row_key": "", "column": "NOTE", "ref_key": "1", "body": '{"b": 1.50, "a": "<i>"}'}
    shown = writer.send("/put/preview", form, page="/put")
    assert shown.status == 200
    assert "&#34;a&#34;:&#34;&lt;i&gt;&#34;" in shown.text
    found = re.search(r'name="row_key" value="([0-9a-f-]{36})"', shown.text)
    assert found is not None
    key = found[1]
    assert console.datastore.get_cell(key, "NOTE", 1) is None
    assert writer.send("/put", form, page="/put").status == 400  # without the preview's key
    put = writer.send("/put", {**form, "row_key": key}, page="/put")
    assert (put.status, "stored" in put.text) == (200, True)
    cell = console.datastore.get_cell(key, "NOTE", 1)
    assert cell is not None
    assert cell.body == {"a": "<i>", "b": 1.5}
    again = writer.send("/put/preview", {**form, "row_key": key}, page="/put")
    assert "The same cell is there already" in again.text
    other = {**form, "row_key": key, "body": "{}"}
    assert writer.send("/put/preview", other, page="/put").status == 409
    for wrong in ({"body": "[]"}, {"body": '{"a":1,"a":2}'}, {"ref_key": "x"}, {"row_key": "x"}):
        assert writer.send("/put", {**form, "row_key": key, **wrong}, "/put").status == 400, wrong
    assert writer.send("/put", {**form, "row_key": key, "column": "PAY"}, "/put").status == 403
    acts = [json.loads(each) for each in console.audit_lines().splitlines()]
    assert {"who": "writer", "to": f"{key}/NOTE/1", "result": "done"}.items() <= [
        each for each in acts if each["did"] == "put"
    ][1].items()


def test_tokens_are_made_for_oneself_or_by_operators_within_their_rights(
    console: RunningConsole,
) -> None:
    name = console.datastore.name
    clerk = visitor(console, "mira", ("read", "column", "OPEN"))
    made = clerk.send("/tokens", {"principal": "mira", "days": "1"}, page="/tokens")
    found = re.search(r"cft_[0-9a-f]{12}_[0-9a-f]{64}", made.text)
    assert found is not None
    assert found[0] not in clerk.get("/tokens").text
    assert clerk.send("/tokens", {"principal": "writer", "days": "1"}, "/tokens").status == 403
    operator = visitor(console, "boss", ("operate", "datastore", name))
    assert operator.send("/tokens", {"principal": "newcomer"}, page="/tokens").status == 200
    # A token of somebody with a right that the operator lacks would give it to the operator.
    refused = operator.send("/tokens", {"principal": "mira"}, page="/tokens")
    assert (refused.status, "rights that you lack" in refused.text) == (403, True)
    for days in ("0", "-1", "9999", "x", ""):
        assert operator.send("/tokens", {"principal": "a", "days": days}, "/tokens").status == 400
    [theirs] = [e for e in list_tokens(console.datastore.state) if e.principal == "newcomer"]
    assert clerk.send("/tokens/revoke", {"id": theirs.id}, page="/tokens").status == 404
    assert operator.send("/tokens/revoke", {"id": theirs.id}, page="/tokens").status == 303
    assert theirs.id not in {each.id for each in list_tokens(console.datastore.state)}
    assert found[0] not in console.audit_lines()
