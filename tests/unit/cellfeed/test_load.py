"""Loading: cut off anywhere and run again, a file is in the store whole and once; the report names
the fault of a line, which costs only that line."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cellfeed.loading import load as load_module
from cellfeed.loading.load import IN_FLIGHT, LOAD_BATCH_CELLS, load_file
from cellfeed.loading.report import PROBLEM_KINDS_MAX, LoadReport
from cellfeed.loading.spec import LoadSpec
from cellfeed.loading.taxi import cells_of_trip, expected_figures, load_taxi, shipped_csv
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, NotFound, Unavailable

NAMESPACE = uuid.UUID("77d3a9a8-3d76-5d0b-a1f1-0e8d3d1c9a55")
LINES = 95
BATCH = 10
SPEC = LoadSpec("BASE", row_key="id")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trips.ndjson"
    path.write_text(
        "".join(
            json.dumps({"id": str(uuid.uuid5(NAMESPACE, str(number))), "n": number}) + "\n"
            for number in range(LINES)
        )
    )
    return path


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "LOAD_BATCH_CELLS", BATCH)


def numbers_in(datastore: Datastore) -> list[int]:
    cells = [
        cell
        for shard in range(datastore.shards)
        for cell in datastore.engine.scan(shard, 0, 10_000)
    ]
    return sorted(json.loads(decode_body(cell.body))["n"] for cell in cells)


class CutStore:
    """A store that is reached for so many batches; in the one after, it is gone before or after it
    has written."""

    def __init__(self, store: Datastore, batches: int, *, written: bool) -> None:
        self._store = store
        self._left = batches
        self._written = written
        self.acknowledged = 0

    def put_cells(self, cells: Sequence[Any]) -> list[PutResult]:
        self._left -= 1
        if self._left < 0:
            if self._written:
                self._store.put_cells(cells)
            raise Unavailable("the store has gone")
        self.acknowledged += len(cells)
        return self._store.put_cells(cells)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("batches", [0, 1, 5, 9])
def test_a_load_that_was_cut_off_is_finished_by_running_it_again_without_a_double_or_a_gap(
    datastore: Datastore, file: Path, batches: int, written: bool
) -> None:
    report = LoadReport()
    store = CutStore(datastore, batches, written=written)
    with pytest.raises(Unavailable):
        load_file(file, store, SPEC, report=report)  # type: ignore[arg-type]
    # Requests in flight may come in any order, the last and shorter one among them.
    there, sure = len(numbers_in(datastore)), store.acknowledged
    assert report.stored == sure, "what was acknowledged is counted"
    assert sure <= there <= min(sure + written * IN_FLIGHT * BATCH, LINES)
    report = load_file(file, datastore, SPEC)
    assert (report.stored, report.exists, report.complete) == (LINES - there, there, True)
    assert numbers_in(datastore) == list(range(LINES))
    assert sum(head.watermark for head in datastore.heads().values()) == LINES, (
        "no id was used twice or left out"
    )


def test_loading_a_file_again_has_no_effect_and_a_longer_file_adds_its_new_cells(
    datastore: Datastore, file: Path
) -> None:
    load_file(file, datastore, SPEC)
    heads = datastore.heads()
    assert load_file(file, datastore, SPEC).exists == LINES
    assert datastore.heads() == heads
    with file.open("a") as more:
        more.write(json.dumps({"id": str(uuid.uuid4()), "n": LINES}) + "\n")
    report = load_file(file, datastore, SPEC)
    assert (report.stored, report.exists) == (1, LINES)


@pytest.mark.usefixtures("small_batches")
def test_progress_only_goes_up_and_ends_at_the_files_size(datastore: Datastore, file: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_file(file, datastore, SPEC, lambda report: seen.append((report.cells, report.read_bytes)))
    assert seen == sorted(seen)
    assert len(seen) == -(-LINES // BATCH)
    assert seen[-1] == (LINES, file.stat().st_size)


def test_a_changed_line_is_a_conflict_with_its_number_and_overwrites_nothing(
    datastore: Datastore, file: Path
) -> None:
    load_file(file, datastore, SPEC)
    lines = file.read_text().splitlines()
    lines[41] = json.dumps({**json.loads(lines[41]), "n": 4_711})
    file.write_text("\n".join(lines))
    report = load_file(file, datastore, SPEC)
    assert (report.conflicts, report.exists, report.complete) == (1, LINES - 1, False)
    assert [(problem.line, problem.outcome) for problem in report.problems] == [
        (42, Outcome.CONFLICT)
    ]
    assert numbers_in(datastore) == list(range(LINES))


def test_lines_that_are_no_cells_are_reported_and_the_others_are_loaded(
    datastore: Datastore, tmp_path: Path
) -> None:
    path, good = tmp_path / "trips.ndjson", str(uuid.uuid4())
    bad = [
        "nonsense",
        "[1]",
        '{"n": 1}',
        '{"id": 5, "n": 1}',
        '{"id": "no uuid", "n": 1}',
        '{"id": "' + good + '", "n": NaN}',
    ]
    path.write_text("\n".join([*bad, json.dumps({"id": good, "n": 0})]))
    report = load_file(path, datastore, SPEC)
    assert (report.stored, report.failed, report.complete) == (1, len(bad), False)
    assert [problem.line for problem in report.problems] == [1, 2, 3, 4, 5, 6]
    assert numbers_in(datastore) == [0]


def test_equal_errors_are_one_problem_with_a_count_and_different_ones_are_not(
    datastore: Datastore, tmp_path: Path
) -> None:
    path = tmp_path / "trips.csv"
    lines = [f"{uuid.uuid4()},{number},x" for number in range(60)]
    for number in range(10, 40):
        lines[number] = f"{uuid.uuid4()},word{number},x"
    lines[50] = f"{uuid.uuid4()},1,x,y"
    path.write_text("\n".join(["id,n,m", *lines]))
    report = load_file(path, datastore, LoadSpec("BASE", row_key="id", field_types={"n": "int"}))
    assert (report.stored, report.failed) == (29, 31)
    assert [(problem.line, problem.count) for problem in report.problems] == [(12, 30), (52, 1)]
    assert str(report.problems[0]) == (
        "line 12: failed: field 'n' holds 'word10', which is not of type int (and 29 more like it:"
        " lines 13, 14, 15, 16, …)"
    )


def test_problems_of_more_kinds_than_are_kept_are_counted() -> None:
    report = LoadReport()
    for number in range(PROBLEM_KINDS_MAX + 5):
        report.add(number, Outcome.FAILED, InvalidRequest("x" * number))
    assert (len(report.problems), report.unnamed) == (PROBLEM_KINDS_MAX, 5)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("max_errors", [0, 5, 30])
def test_a_load_with_too_many_errors_stops_and_reports_the_last_line(
    datastore: Datastore, tmp_path: Path, max_errors: int
) -> None:
    path = tmp_path / "trips.ndjson"
    path.write_text("nonsense\n" * 400 + json.dumps({"id": str(uuid.uuid4())}) + "\n" * 400)
    report = load_file(path, datastore, LoadSpec("BASE", row_key="id"), max_errors=max_errors)
    assert report.stopped_behind == report.last_line == report.failed
    assert max_errors < report.failed <= max_errors + (IN_FLIGHT + 1) * BATCH
    assert not report.complete
    whole = load_file(path, datastore, LoadSpec("BASE", row_key="id"), max_errors=400)
    assert (whole.stopped_behind, whole.failed, whole.stored) == (None, 400, 1)


@pytest.mark.usefixtures("small_batches")
def test_of_two_lines_with_one_key_the_first_counts_and_a_row_keeps_the_files_order(
    datastore: Datastore, tmp_path: Path
) -> None:
    path, rows = tmp_path / "trips.ndjson", [str(uuid.uuid4()) for _ in range(7)]
    path.write_text(
        "".join(
            json.dumps({"id": rows[number % 7], "ref": ref, "n": n}) + "\n"
            for n, (number, ref) in enumerate((n, ref) for ref in range(40) for n in range(7))
        )
        + "".join(json.dumps({"id": row, "ref": 3, "n": -1}) + "\n" for row in rows)
    )
    report = load_file(path, datastore, LoadSpec("BASE", row_key="id", ref_key="ref"))
    assert (report.stored, report.conflicts) == (280, 7)
    assert min(numbers_in(datastore)) == 0
    for shard in range(datastore.shards):
        of_row: dict[bytes, list[int]] = {}
        for cell in datastore.engine.scan(shard, 0, 10_000):
            of_row.setdefault(cell.row_key, []).append(cell.ref_key)
        assert all(refs == list(range(40)) for refs in of_row.values())


@pytest.mark.usefixtures("small_batches")
def test_a_batch_waits_for_an_earlier_one_with_the_same_row(tmp_path: Path) -> None:
    rows = [str(uuid.uuid4()) for _ in range(6 * BATCH)]
    rows[BATCH] = rows[0]
    path = tmp_path / "trips.ndjson"
    path.write_text("".join(json.dumps({"id": row}) + "\n" for row in rows))
    under_way: list[set[bytes]] = []
    lock = threading.Lock()
    met: list[set[bytes]] = []

    class Slow:
        def put_cells(self, cells: Sequence[Any]) -> list[PutResult]:
            keys = {cell.row_key for cell in cells}
            with lock:
                met.extend(other & keys for other in under_way)
                under_way.append(keys)
            time.sleep(0.02)
            with lock:
                under_way.remove(keys)
            return [PutResult(Outcome.STORED, 0, 0) for _ in cells]

    assert load_file(path, Slow(), SPEC).stored == len(rows)  # type: ignore[arg-type]
    assert met, "batches were under way together"
    assert not any(met), "but none with a row of another"


def test_unanswered_puts_are_unknown_and_the_load_is_not_complete(
    datastore: Datastore, file: Path
) -> None:
    class Silent:
        def put_cells(self, cells: Sequence[Any]) -> list[PutResult]:
            return [PutResult(Outcome.UNKNOWN, 0) for _ in cells]

    report = load_file(file, Silent(), SPEC)  # type: ignore[arg-type]
    assert (report.unknown, report.complete) == (LINES, False)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_its_own_count(outcome: Outcome) -> None:
    report = LoadReport()
    report.add(1, outcome, None)
    counts = report.as_json()
    assert counts["cells"] == 1
    assert (
        sum(
            counts[name]
            for name in ("stored", "exists", "buffered", "conflicts", "failed", "unknown")
        )
        == 1
    )


@pytest.mark.parametrize(
    "spec",
    [
        LoadSpec("BASE"),
        LoadSpec("BASE", row_key="id", row_key_from=["id"]),
        LoadSpec("", row_key="id"),
        LoadSpec("BASE", row_key="id", ref_key=1 << 63),
        LoadSpec("BASE", row_key="id", field_types={"n": "int"}),
    ],
)
def test_a_load_with_contradicting_options_puts_no_cell(
    datastore: Datastore, file: Path, spec: LoadSpec
) -> None:
    with pytest.raises(InvalidRequest):
        load_file(file, datastore, spec)
    assert numbers_in(datastore) == []


def test_a_missing_file_or_one_without_a_known_format_is_refused(
    datastore: Datastore, tmp_path: Path
) -> None:
    with pytest.raises(NotFound):
        load_file(tmp_path / "nowhere.csv", datastore, SPEC)
    (tmp_path / "trips.txt").write_text("")
    with pytest.raises(InvalidRequest, match="--format"):
        load_file(tmp_path / "trips.txt", datastore, SPEC)


def test_the_shipped_trips_have_the_totals_of_their_text(datastore: Datastore) -> None:
    figures = expected_figures()
    report = load_taxi(datastore)
    assert (report.stored, report.complete) == (figures.cells, True)
    assert figures.cells > LOAD_BATCH_CELLS, "in several batches"
    cells = [
        cell
        for shard in range(datastore.shards)
        for cell in datastore.engine.scan(shard, 0, 10_000)
    ]
    by_column = Counter(cell.column_name for cell in cells)
    assert by_column == {
        "BASE": figures.base_cells,
        "NOTES": figures.notes_cells,
        "FARE_ADJUSTMENT": figures.fare_adjustment_cells,
    }
    totals = [json.loads(decode_body(cell.body)) for cell in cells if cell.column_name == "BASE"]
    assert (
        sum(trip["total_cents"] for trip in totals if trip["payment"] == "credit card")
        == figures.card_cents
    )
    assert (figures.trips, shipped_csv().name) == (6_433, "taxis.csv")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("total", "12.955"),
        ("total", "NaN"),
        ("total", ""),
        ("passengers", "two"),
        ("pickup", "yesterday"),
    ],
)
def test_a_value_that_no_trip_has_is_refused_by_its_field(field: str, value: str) -> None:
    header, first = shipped_csv().read_text().splitlines()[:2]
    trip = dict(zip(header.split(","), first.split(","), strict=True))
    assert cells_of_trip(trip)
    with pytest.raises(InvalidRequest, match=f"field '{field}'"):
        cells_of_trip({**trip, field: value})
