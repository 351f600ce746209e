"""``python -m benchmarks NAME… [--json]``; ``--all``; ``--list``. Exit codes: 0 measured, 1 failed,
2 used wrongly.

A name is spelled with hyphens or underscores. A figure beyond its limit is marked, but is no
failure: a busy machine is not a broken program.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks import Figure, benchmark_names, run_benchmark
from benchmarks._plot import draw
from benchmarks._record import Recorder

_HEAD = f"{'figure':46} {'value':>12} {'unit':15} {'limit':>11} {'ratio':>7}  beside"


def main(arguments: list[str] | None = None) -> int:
    """Runs the named benchmarks and prints a line per figure, as it is measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures cellfeed; every figure stands beside its limit.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; see --list")
    parser.add_argument("--all", action="store_true", help="run every benchmark")
    parser.add_argument(
        "--list", action="store_true", help="print the names and what each measures"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FOLDER",
        help="write each benchmark's figures, load and moment into FOLDER/results/NAME.json,"
        " and draw them as FOLDER/NAME.svg",
    )
    parser.add_argument(
        "--draw", type=Path, metavar="FOLDER", help="draw the recorded runs of FOLDER again"
    )
    given = parser.parse_args(arguments)
    if given.draw:
        for picture in draw(given.draw):
            print(picture)
        return 0
    known = benchmark_names()
    if given.list:
        for name, about in known.items():
            print(
                json.dumps({"name": name, "about": about}) if given.json else f"{name:20} {about}"
            )
        return 0
    names = list(known) if given.all else [name.replace("_", "-") for name in given.names]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        wrong = f"there is no benchmark {', '.join(unknown)}" if unknown else "no benchmark named"
        print(f"{wrong}; known are {', '.join(known)}", file=sys.stderr)
        return 2
    if not given.json:
        print(_HEAD)
    run = Recorder(given.record / "results").run if given.record else run_benchmark
    for name in names:
        for figure in run(name):
            print(json.dumps(figure.as_json()) if given.json else _line(figure), flush=True)
        if given.record:
            draw(given.record)
    if not given.json:
        print(
            f"load average {' '.join(f'{load:.1f}' for load in os.getloadavg())} on"
            f" {os.cpu_count()} cores"
        )
    return 0


def _line(figure: Figure) -> str:
    limit = (
        f"{'≥' if figure.limit.at_least else '≤'} {figure.limit.value:,.10g}"
        if figure.limit
        else ""
    )
    ratio = "" if figure.ratio is None else f"{figure.ratio:.3f}"
    text = f"{figure.name:46} {figure.figure:>12,.2f} {figure.unit:15} {limit:>11} {ratio:>7}"
    if figure.beside_figure is not None:
        text += f"  {figure.beside}: {figure.beside_figure:,.2f}"
    return text + ("  BEYOND LIMIT" if figure.within_limit is False else "")


if __name__ == "__main__":
    sys.exit(main())
