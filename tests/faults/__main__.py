"""``make faults [KIND=…] [SEED=…]``: fault runs on the whole system, one JSON summary a line. Exits with 1 when an invariant was broken or a fault
did not happen."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.faults.cluster_run import CLUSTER_KINDS, run_cluster_faults
from tests.faults.run import KINDS, run_faults
from tests.services import local_mariadb


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kind", choices=(*KINDS, *CLUSTER_KINDS), help="one kind of fault; all of them when left out")
    parser.add_argument("--seed", type=int, help="one seed; 1 to 3 when left out")
    parser.add_argument("--keep", action="store_true", help="keep the run directories of runs that failed")
    arguments = parser.parse_args()
    failed = 0
    for kind in [arguments.kind] if arguments.kind else _all_kinds():
        for seed in [arguments.seed] if arguments.seed is not None else (1, 2, 3):
            directory = Path(tempfile.mkdtemp(prefix=f"cellfeed-faults-{kind}-{seed}-"))
            result = run_faults(kind, seed, directory) if kind in KINDS else run_cluster_faults(kind, seed)
            summary = result.as_json()
            if result.passed or not arguments.keep:
                shutil.rmtree(directory)
            else:
                summary["directory"] = str(directory)
            print(json.dumps(summary), flush=True)
            failed += not result.passed
    return 1 if failed else 0


def _all_kinds() -> tuple[str, ...]:
    if reason := local_mariadb.why_not():
        print(f"no fault runs on clusters: {reason}", file=sys.stderr)
        return KINDS
    return (*KINDS, *CLUSTER_KINDS)


if __name__ == "__main__":
    sys.exit(main())
