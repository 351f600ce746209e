"""kcat, librdkafka's command line: where it is not installed the tests that need it are skipped,
with the reason."""

from __future__ import annotations

import shutil

import pytest

needs_kcat = pytest.mark.skipif(
    shutil.which("kcat") is None,
    reason="no kcat on this machine: `make services` installs it on Debian",
)
