"""``python -m tests.fuzz gateway``: malformed frames, 200,000 of them, at a running gateway beside
good clients; how far it is goes to standard error, the verdict is one JSON object. Exits with 1
when something was found. ``capture``: records the frames of real clients again."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.fuzz.captures import capture
from tests.fuzz.gateway_run import run_gateway_fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    gateway = commands.add_parser("gateway", help="malformed frames at a gateway")
    gateway.add_argument(
        "--frames", type=int, default=200_000, help="how many (default: %(default)s)"
    )
    gateway.add_argument(
        "--seed",
        type=int,
        default=1,
        help="what is sent, and how, follows from it (default: %(default)s)",
    )
    gateway.add_argument(
        "--batch", type=int, help="one batch alone, by the number that a failure tells"
    )
    commands.add_parser(
        "capture",
        help=(
            "record requests of the clients that are installed into tests/fuzz/captured_frames.txt"
        ),
    )
    arguments = parser.parse_args()
    if arguments.command == "capture":
        print(f"{capture()} frames")
        return 0
    with tempfile.TemporaryDirectory(prefix="cellfeed-fuzz-") as directory:
        result = run_gateway_fuzz(
            arguments.seed,
            arguments.frames,
            Path(directory),
            lambda line: print(line, file=sys.stderr, flush=True),
            arguments.batch,
        )
    print(json.dumps(result.as_json()), flush=True)
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
