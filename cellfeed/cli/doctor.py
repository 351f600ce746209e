"""doctor: inspects an installation, and names its faults with their remedies."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

import typer

from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.doctor.examination import examine
from cellfeed.doctor.findings import Finding, Level
from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound

_STYLES: Final = {
    Level.WELL: None,
    Level.ADVICE: "yellow",
    Level.PROBLEM: "red",
    Level.UNKNOWN: "red",
}


def doctor(
    every: Annotated[
        bool, typer.Option("--all", help="Also print the looks that found no fault.")
    ] = False,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Inspect an installation, and name its faults with their remedies.

    It looks at the host, disks, permissions, certificates, servers, dictionaries, processes, and
    everything that stands still.

    It changes nothing. Exit code 1 when there is a problem, or something could not be looked at;
    advice alone is 0.
    """
    directory = RunDir(run_dir)
    if not directory.config.exists():
        raise NotFound(f"{run_dir} is not the run directory of an instance")
    levels: Counter[Level] = Counter()
    for finding in examine(directory, load_config(directory.config)):
        levels[finding.level] += 1
        if as_json:
            print_json(finding.as_json())
        elif every or finding.level is not Level.WELL:
            _print(finding)
    if not as_json:
        console.print(
            f"{levels.total()} looks: {levels[Level.WELL]} well, {levels[Level.ADVICE]} advice,"
            f" {levels[Level.PROBLEM]} problems, {levels[Level.UNKNOWN]} not looked at",
            highlight=False,
        )
    if levels[Level.PROBLEM] or levels[Level.UNKNOWN]:
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    console.print(
        f"{finding.level}: {finding.area}: {finding.subject}: {finding.found}",
        style=_STYLES[finding.level],
        highlight=False,
    )
    if finding.remedy:
        console.print(f"    {finding.remedy}", highlight=False)
