"""`python -m tests.newcomer [DIRECTORY]`: prints a new user's first day."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.newcomer.day import live

if len(sys.argv) > 1:
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    live(Path(sys.argv[1]).absolute())
else:
    with tempfile.TemporaryDirectory(prefix="cellfeed-newcomer-") as name:
        live(Path(name))
