"""The output of a load: before it, and at its end."""

from __future__ import annotations

from uuid import UUID

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from cellfeed.cli.output import console, errors, print_json
from cellfeed.loading.look import Look
from cellfeed.loading.report import COUNTS, LoadReport
from cellfeed.loading.spec import FileCells

_BODY_CHARACTERS = 160


def show_look(out: Console, cells: FileCells, look: Look, datastore: str) -> None:
    """Types, keys, examples and conflicts of a load that has not begun."""
    spec = cells.spec
    out.print(
        f"{cells.path.name}: {cells.file_format.value}, {look.records:,} records, into column"
        f" {spec.column} of datastore {datastore}",
        highlight=False,
    )
    table = Table("field", "type", "without value", "for example", box=None, pad_edge=False)
    for name, seen in look.fields.items():
        kind = seen.type_name()
        if name in cells.field_types and name not in spec.field_types:
            kind += " (inferred)"
        table.add_row(name, kind, f"{seen.without_value():,}", ", ".join(seen.examples))
    out.print(table, soft_wrap=False)
    source = (
        f"field {spec.row_key}" if spec.row_key else f"made from {', '.join(spec.row_key_from)}"
    )
    ref = f"field {spec.ref_key}" if isinstance(spec.ref_key, str) else str(spec.ref_key)
    out.print(f"row key: {source}; ref key: {ref}", highlight=False)
    for cell in look.examples:
        body = cell.body_json.decode()
        out.print(
            f"  {UUID(bytes=cell.row_key)} {cell.column_name} {cell.ref_key} "
            f" {body[:_BODY_CHARACTERS]}{'…' if len(body) > _BODY_CHARACTERS else ''}",
            highlight=False,
            soft_wrap=True,
        )
    would = look.would
    out.print(
        f"compared with the store: {look.compared:,} cells: {would.stored:,} new,"
        f" {would.exists:,} there already; in all {would.conflicts:,} conflicts,"
        f" {would.failed:,} lines that cannot be loaded, {look.repeated:,} repeated lines",
        highlight=False,
    )
    if not look.keys_kept:
        out.print("keys later in the file were not compared with each other", highlight=False)
    _show_problems(out, would)


def show_end(
    report: LoadReport, seconds: float, max_errors: int, as_json: bool, *, broken_off: bool = False
) -> None:
    """Counts, problems, and the rate of a load that has ended."""
    rate = report.cells / seconds if seconds else 0.0
    if as_json:
        print_json(
            {
                **report.as_json(),
                "seconds": round(seconds, 3),
                "bytes": report.read_bytes,
                "cells_per_s": round(rate),
            }
        )
        return
    _show_problems(errors, report)
    if report.stopped_behind is not None:
        errors.print(
            f"stopped: more than {max_errors:,} errors (--max-errors). Lines behind"
            f" {report.stopped_behind:,} were not tried. Correct the file or the options, and run"
            " it again: stored cells stay",
            style="red",
            highlight=False,
        )
    elif broken_off:
        errors.print(
            "broken off: the cells counted here stay; run the same command again to finish",
            style="red",
            highlight=False,
        )
    counts = ", ".join(f"{name} {getattr(report, name)}" for name in COUNTS)
    console.print(f"{counts}, cells {report.cells}", highlight=False)
    console.print(
        f"{decimal(report.read_bytes)} in {seconds:.1f} s: {rate:,.0f} cells/s,"
        f" {decimal(round(report.read_bytes / seconds)) if seconds else '0 bytes'}/s",
        highlight=False,
    )


def _show_problems(out: Console, report: LoadReport) -> None:
    for problem in report.problems:
        out.print(str(problem), style="red", highlight=False, markup=False)
    if report.unnamed:
        out.print(f"and {report.unnamed:,} other errors", style="red", highlight=False)
