"""``cellfeed`` and ``python -m cellfeed``: the command line, where its extra is installed."""

from __future__ import annotations

import sys

from cellfeed.extras import missing_extra


def main() -> None:
    """Entry point. The command line reports its own errors; here its packages may be missing."""
    try:
        from cellfeed.cli.main import main as run  # the client alone is installed without them
    except ModuleNotFoundError as error:
        sentence = missing_extra(error)
        if sentence is None:
            raise
        sys.exit(f"error: {sentence}")
    run()


if __name__ == "__main__":
    main()
