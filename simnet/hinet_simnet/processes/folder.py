"""The folder of one run: homes and logs, gone afterwards whatever happens.

A run holds a lock in its folder. A killed one leaves the folder behind with nobody at the lock: the next run removes
it. Leaves what lies inside to `device` and `stage`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "hinet-simnet-run-"
LOCK = "lock"


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new private folder, removed at the end. Removes those of runs that were killed."""
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_leftovers() -> None:
    """Remove the folders of this user's runs that no process holds any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def keep_logs(folder: Path) -> Path:
    """Move the logs of a run with findings to a folder that stays."""
    kept = Path(tempfile.mkdtemp(prefix="hinet-simnet-logs-"))
    for log in sorted((folder / "logs").glob("*.log")):
        shutil.move(log, kept / log.name)
    return kept
