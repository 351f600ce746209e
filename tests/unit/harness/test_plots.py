"""The plots that the page of figures shows are drawn from recorded runs, misses included."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

import benchmarks
from benchmarks import Figure, at_least, at_most
from benchmarks.__main__ import main
from benchmarks._plot import Axis, draw, pictures, plot_of
from benchmarks._record import Run, read_run
from tests.support.source_files import ROOT

PAGE = ROOT / "docs" / "figures.md"
PLOTS = ROOT / "docs" / "plots"


def run_of(*figures: Figure) -> Run:
    at = datetime(2026, 1, 5, 10, tzinfo=UTC)
    return Run("put-http", "Puts.", at, 4.2, "0123abcd", 2, 0.5, 6.04, figures)


def saved(folder: Path, *figures: Figure) -> Path:
    (folder / "results").mkdir(parents=True)
    path = folder / "results" / "put-http.json"
    path.write_text(json.dumps(run_of(*figures).as_json()))
    return path


def faults(page: str, plots: Path) -> Iterator[str]:
    """The pictures that a page lacks, that no run backs, or that say something else than it."""
    named = set(re.findall(r"\]\(plots/([^)]+)\.svg\)", page))
    backed = pictures(plots / "results")
    for name in sorted(named ^ backed.keys()):
        yield f"{name}: {'no recorded run' if name in named else 'the page does not show it'}"
    for name, picture in backed.items():
        path = plots / f"{name}.svg"
        if not path.is_file() or path.read_text() != picture:
            yield f"{name}: not as recorded; run python -m benchmarks --draw docs/plots"


def test_the_page_shows_every_recorded_run_and_no_other_plot() -> None:
    assert len(list((PLOTS / "results").glob("*.json"))) >= 8
    assert list(faults(PAGE.read_text(), PLOTS)) == []
    assert {path.stem for path in PLOTS.glob("*.svg")} == pictures(PLOTS / "results").keys()


def test_a_plot_by_hand_without_a_run_or_out_of_the_page_is_found(tmp_path: Path) -> None:
    saved(tmp_path, Figure("put http rate", 10.0, "cells/s"))
    draw(tmp_path)
    page = "![a](plots/put-http.svg) ![b](plots/limits.svg)"
    assert list(faults(page, tmp_path)) == []
    assert len(list(faults(page + " ![c](plots/other.svg)", tmp_path))) == 1
    assert len(list(faults("![b](plots/limits.svg)", tmp_path))) == 1
    plot = tmp_path / "put-http.svg"
    plot.write_text(plot.read_text().replace(">10<", ">11<"))
    assert len(list(faults(page, tmp_path))) == 1


@pytest.mark.parametrize("run", sorted((PLOTS / "results").glob("*.json")), ids=lambda p: p.stem)
def test_a_recorded_run_shows_each_figure_and_each_miss(run: Path) -> None:
    recorded = read_run(run)
    texts = [each.text or "" for each in ElementTree.fromstring(plot_of(recorded)).iter()]
    missed = [figure for figure in recorded.figures if figure.within_limit is False]
    assert recorded.figures
    assert sum(text.endswith(", missed") for text in texts) == len(missed)
    assert any(recorded.commit in text and "load" in text for text in texts)


def test_a_run_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    figures = (
        Figure("put http rate", 10.0, "cells/s", "sqlite3", 40.0, at_least(20)),
        Figure("put http p99", 0.5, "ms", limit=at_most(5)),
        Figure("put http lost", 0.0, "cells"),
    )
    assert read_run(saved(tmp_path, *figures)).as_json() == run_of(*figures).as_json()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"benchmark": "put-http"}'])
def test_a_file_that_is_no_recorded_run_is_an_error_with_its_name(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "put-http.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"put-http\.json is no recorded run"):
        read_run(path)


def test_a_plot_of_odd_names_and_values_is_well_formed() -> None:
    figures = (
        Figure("a <name> & another", 0.0, "cells", "a <peer>", 0.0, at_most(0)),
        Figure("b" * 80, 1e-9, "s", "x", 1e9, at_least(1.0)),
        Figure("c", -3.0, "cells"),
    )
    texts = [each.text for each in ElementTree.fromstring(plot_of(run_of(*figures))).iter()]
    assert "a <name> & another" in texts
    assert ElementTree.fromstring(plot_of(run_of())) is not None


def test_equal_ratios_are_equal_distances_and_every_value_has_room() -> None:
    axis = Axis([0.5, 5.0, 50.0, 0.0])
    low, middle, high = axis.x(0.5), axis.x(5.0), axis.x(50.0)
    assert middle - low == pytest.approx(high - middle, abs=0.2)
    assert axis.marks() == [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]


def test_the_command_records_and_draws_a_run_and_one_that_fails_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(_: str) -> Iterator[Figure]:
        yield Figure("put http rate", 10.0, "cells/s", limit=at_least(20))

    def failing(name: str) -> Iterator[Figure]:
        yield from measured(name)
        raise RuntimeError("the server is gone")

    monkeypatch.setattr("benchmarks._record.run_benchmark", measured)
    monkeypatch.setattr(benchmarks.__main__, "benchmark_names", lambda: {"put-http": "Puts."})
    monkeypatch.setattr("benchmarks._record.benchmark_names", lambda: {"put-http": "Puts."})
    monkeypatch.setattr("benchmarks._record._commit", lambda: "0123abcd")
    assert main(["put_http", "--record", str(tmp_path)]) == 0
    assert "BEYOND LIMIT" in capsys.readouterr().out
    before = {path.name: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert before.keys() == {"put-http.json", "put-http.svg", "limits.svg"}
    assert all("missed" in before[name] for name in ("put-http.svg", "limits.svg"))
    monkeypatch.setattr("benchmarks._record.run_benchmark", failing)
    with pytest.raises(RuntimeError, match="gone"):
        main(["put-http", "--record", str(tmp_path)])
    assert before == {p.name: p.read_text() for p in tmp_path.rglob("*.*") if p.is_file()}
    assert main(["--draw", str(tmp_path)]) == 0
    assert "put-http.svg" in capsys.readouterr().out
