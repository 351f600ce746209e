"""``make faults [KIND=…] [SEED=…]``: fault runs on the whole system, on clients that fork, and on
the files of an embedded store; on storage clusters and restores of them; on triggers with their
ZooKeeper, on gateways, and on exports; one JSON summary a line, with the seed that repeats it.
Exits with 1 when an invariant was broken or a fault did not happen."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cellfeed.store.errors import Unavailable
from tests.faults import gateway_faults
from tests.faults.bit_flips import BIT_FLIP_KINDS, FLIPS, FLIPS_BRIEF, run_bit_flips
from tests.faults.cluster_run import CLUSTER_KINDS, run_cluster_faults
from tests.faults.embedded_run import EMBEDDED_KINDS, run_embedded_faults
from tests.faults.erase_run import ERASE_KINDS, run_erase_faults
from tests.faults.export_run import BRIEF as EXPORT_BRIEF
from tests.faults.export_run import EXPORT_KINDS, STORE_CUT, run_export_faults
from tests.faults.export_run import FULL as EXPORT_FULL
from tests.faults.fork_run import FORK_KINDS, FORKS, FORKS_BRIEF, run_fork_faults
from tests.faults.gateway_run import GATEWAY_KINDS, run_gateway_faults
from tests.faults.hosts_run import HOST_KINDS, run_host_faults
from tests.faults.hosts_run import ROUNDS as HOST_ROUNDS
from tests.faults.hosts_run import ROUNDS_BRIEF as HOST_ROUNDS_BRIEF
from tests.faults.node_flips import ROUNDS, ROUNDS_BRIEF, run_node_flips
from tests.faults.planted import PLANTS, found_by
from tests.faults.restore_run import RESTORE_KINDS, run_restore_faults
from tests.faults.run import KINDS, PUT_PAUSE_BRIEF_S, PUT_PAUSE_S, FaultRun, run_faults
from tests.faults.seeds import default_seed
from tests.faults.trigger_faults import BRIEF, FULL
from tests.faults.trigger_run import TRIGGER_KINDS, run_trigger_faults
from tests.faults.wait_run import WAIT_KINDS, run_wait_faults
from tests.faults.waited_puts import BRIEF as WAITS_BRIEF
from tests.faults.waited_puts import FULL as WAITS_FULL
from tests.support import local_kafka, local_mariadb, local_zookeeper, spread_instance
from tests.support.small_disk import NoSmallDisk

ALL_KINDS: Final = (
    *KINDS,
    *FORK_KINDS,
    *EMBEDDED_KINDS,
    *BIT_FLIP_KINDS,
    *ERASE_KINDS,
    *CLUSTER_KINDS,
    *RESTORE_KINDS,
    *TRIGGER_KINDS,
    *GATEWAY_KINDS,
    *EXPORT_KINDS,
    *WAIT_KINDS,
    *HOST_KINDS,
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "--kind", choices=ALL_KINDS, help="one kind of fault; all of them when left out"
    )
    parser.add_argument(
        "--seed",
        type=seeds,
        metavar="N|N-M",
        help="one seed, or the first and the last of several (that of the day; with --all three)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help=(
            "every kind must run, and find its planted defect; one that cannot run counts as failed"
        ),
    )
    parser.add_argument(
        "--planted",
        action="store_true",
        help="plant the defect of each kind, and exit with 1 when its run does not find it",
    )
    parser.add_argument("--brief", action="store_true", help="as small as in the test suite")
    parser.add_argument(
        "--keep", action="store_true", help="keep the run directories of runs that failed"
    )
    arguments = parser.parse_args()
    chosen_seeds = arguments.seed or range(
        today := default_seed(), today + (3 if arguments.all else 1)
    )
    print(f"fault runs with seeds {chosen_seeds[0]} to {chosen_seeds[-1]}", file=sys.stderr)
    chosen = [arguments.kind] if arguments.kind else _all_kinds()
    if arguments.planted:
        return min(1, sum(_plant_missed(kind, chosen_seeds[0]) for kind in chosen))
    failed = len(set(ALL_KINDS) - set(chosen)) if arguments.all else 0
    for kind in chosen:
        for seed in chosen_seeds:
            directory = Path(tempfile.mkdtemp(prefix=f"cellfeed-faults-{kind}-{seed}-"))
            try:
                result = _run(kind, seed, directory, brief=arguments.brief)
            except NoSmallDisk as reason:
                print(f"no run of {kind}: {reason}", file=sys.stderr)
                failed += arguments.all
                continue
            except Exception as error:
                # a server did not start, or the fault did not happen: the others are still run
                told = error if isinstance(error, Unavailable) else traceback.format_exc()
                print(f"the run of {kind} with seed {seed} broke off: {told}", file=sys.stderr)
                failed += 1
                continue
            summary = result.as_json()
            if result.passed or not arguments.keep:
                shutil.rmtree(directory)
            else:
                summary["directory"] = str(directory)
            print(json.dumps(summary), flush=True)
            failed += not result.passed
        if arguments.all:
            failed += _plant_missed(kind, chosen_seeds[0])
    return 1 if failed else 0


def _plant_missed(kind: str, seed: int) -> bool:
    """Runs a kind with its planted defect; whether it was not found."""
    plant = PLANTS[kind]
    with tempfile.TemporaryDirectory(prefix="cellfeed-faults-planted-") as directory:
        try:
            missed = found_by(lambda: _run(kind, seed, Path(directory), brief=True), plant)
        except Exception:
            missed = f"the run broke off: {traceback.format_exc()}"
    print(
        json.dumps(
            {
                "kind": kind,
                "seed": seed,
                "planted": plant.what,
                "found": missed is None,
                "why_not": missed,
            }
        ),
        flush=True,
    )
    return missed is not None


def seeds(text: str) -> Sequence[int]:
    first, _, last = text.partition("-")
    found = range(int(first), int(last or first) + 1)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: the last seed comes before the first")
    return found


def _run(kind: str, seed: int, directory: Path, *, brief: bool) -> FaultRun:
    if kind in KINDS:
        return run_faults(kind, seed, directory, PUT_PAUSE_BRIEF_S if brief else PUT_PAUSE_S)
    if kind in FORK_KINDS:
        return run_fork_faults(kind, seed, directory, FORKS_BRIEF if brief else FORKS)
    if kind in EMBEDDED_KINDS:
        return run_embedded_faults(kind, seed, directory)
    if kind in BIT_FLIP_KINDS:
        files = run_bit_flips(kind, seed, directory, FLIPS_BRIEF if brief else FLIPS)
        if local_mariadb.why_not() is None:
            files.add(run_node_flips(kind, seed, ROUNDS_BRIEF if brief else ROUNDS))
        return files
    if kind in ERASE_KINDS:
        return run_erase_faults(kind, seed, directory)
    if kind in CLUSTER_KINDS:
        return run_cluster_faults(
            kind, seed, all_readers=kind.startswith("shard-moves") and local_kafka.why_not() is None
        )
    if kind in RESTORE_KINDS:
        return run_restore_faults(kind, seed, directory)
    if kind in GATEWAY_KINDS:
        return run_gateway_faults(
            kind, seed, directory, gateway_faults.BRIEF if brief else gateway_faults.FULL
        )
    if kind in EXPORT_KINDS:
        return run_export_faults(kind, seed, directory, EXPORT_BRIEF if brief else EXPORT_FULL)
    if kind in WAIT_KINDS:
        return run_wait_faults(kind, seed, directory, WAITS_BRIEF if brief else WAITS_FULL)
    if kind in HOST_KINDS:
        return run_host_faults(kind, seed, HOST_ROUNDS_BRIEF if brief else HOST_ROUNDS)
    return run_trigger_faults(kind, seed, directory, BRIEF if brief else FULL)


def _all_kinds() -> list[str]:
    kinds, no_export = (
        [*KINDS, *FORK_KINDS, *EMBEDDED_KINDS, *BIT_FLIP_KINDS, *ERASE_KINDS],
        local_kafka.why_not() or local_zookeeper.why_not(),
    )
    groups: tuple[tuple[str, Sequence[str], str | None], ...] = (
        ("clusters", (*CLUSTER_KINDS, *RESTORE_KINDS), local_mariadb.why_not()),
        (
            "trigger groups and gateways",
            (*TRIGGER_KINDS, *GATEWAY_KINDS),
            local_zookeeper.why_not(),
        ),
        ("exports", [kind for kind in EXPORT_KINDS if kind != STORE_CUT], no_export),
        ("waits", WAIT_KINDS, local_kafka.why_not() or local_mariadb.why_not()),
        ("hosts", HOST_KINDS, spread_instance.why_not()),
        (STORE_CUT, [STORE_CUT], no_export or local_mariadb.why_not()),
    )
    for what, more, reason in groups:
        if reason:
            print(f"no fault runs on {what}: {reason}", file=sys.stderr)
        else:
            kinds += more
    return kinds


if __name__ == "__main__":
    sys.exit(main())
