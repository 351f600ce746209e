"""`python -m tests.newcomer [DIRECTORY]`: prints what a new user sees in a day."""

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
