"""Set before any engine is imported: thread pools that spin on a shared machine slow these tests tenfold."""

from __future__ import annotations

import os

from hinet_tiers.worker import QUIET

for name, value in {**QUIET, "OMP_NUM_THREADS": "1"}.items():
    os.environ.setdefault(name, value)
