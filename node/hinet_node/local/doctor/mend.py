"""What `doctor --fix` does: only what loses nothing and what nobody could miss. Each act says what it did.

Modes are made narrower, never wider; what a dead agent or a cut-short write left behind goes, under the home's lock.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from hinet_node import home
from hinet_node.errors import ConflictError
from hinet_node.local.client import agent_answers
from hinet_node.local.doctor.facts import Facts
from hinet_node.local.doctor.gather import is_secret
from hinet_node.real.disk import RealDisk


def mend(facts: Facts) -> list[str]:
    """Put right what can be; what was done, one line each."""
    done = []
    place = Path(facts.home)
    if not facts.home_problem and place.is_dir() and facts.home_mode & 0o077:
        done.append(_narrow(place, 0o700))
    for name, mode in facts.open_files:
        done.append(_narrow(place / name, mode & (0o700 if is_secret(name) else 0o755)))
    folder = Path(facts.socket_place).parent
    if facts.socket_problem and folder.stat().st_uid == os.getuid():
        done.append(_narrow(folder, 0o700))
    if (facts.socket_stale or facts.leftovers) and not facts.agent_running:
        with suppress(ConflictError), home.locked(facts.home):  # whoever uses the home now may still need these
            done += _remove_remains(facts)
    return [line for line in done if line]


def _remove_remains(facts: Facts) -> list[str]:
    """What nobody uses any more. The home's lock is held."""
    done = []
    if facts.socket_stale and not agent_answers(facts.home):
        Path(facts.socket_place).unlink(missing_ok=True)
        done.append(f"removed {facts.socket_place}, which a dead agent had left")
    if facts.leftovers:
        done.append(f"removed {RealDisk(facts.home).remove_leftovers()} files of writes that were cut short")
    return done


def _narrow(path: Path, mode: int) -> str:
    """Set a mode without following a link; "" when the file is gone or is something else now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        found = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(found) or stat.S_ISDIR(found)):
            return ""
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    return f"chmod {mode:o} {path}"
