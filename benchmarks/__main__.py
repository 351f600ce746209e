"""``python -m benchmarks NAME… [--json]``; ``python -m benchmarks --list``. Exit codes: 0 measured, 1 failed, 2 used wrongly."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks import Figure, benchmark_names, run_benchmark


def main(arguments: list[str] | None = None) -> int:
    """Runs the named benchmarks and prints a line per figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures cellfeed; every figure stands beside its limit.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; see --list")
    parser.add_argument("--list", action="store_true", help="print the names and what each measures")
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    given = parser.parse_args(arguments)
    known = benchmark_names()
    if given.list:
        for name, about in known.items():
            print(json.dumps({"name": name, "about": about}) if given.json else f"{name:20} {about}")
        return 0
    unknown = [name for name in given.names if name not in known]
    if unknown or not given.names:
        wrong = f"there is no benchmark {', '.join(unknown)}" if unknown else "no benchmark named"
        print(f"{wrong}; known are {', '.join(known)}", file=sys.stderr)
        return 2
    for name in given.names:
        for figure in run_benchmark(name):
            print(json.dumps(figure.as_json()) if given.json else _line(figure), flush=True)
    return 0


def _line(figure: Figure) -> str:
    text = f"{figure.name:32} {figure.figure:>12,.2f} {figure.unit}"
    if figure.beside_figure is not None:
        text += f"   beside {figure.beside}: {figure.beside_figure:,.2f} (ratio {figure.ratio})"
    return text


if __name__ == "__main__":
    sys.exit(main())
