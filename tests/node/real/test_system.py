"""The C library's memory: what a burst took goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

BURST = """
import sys
from pathlib import Path
from hinet_node.real.system import return_freed_memory

def resident_kib():
    status = Path("/proc/self/status")
    return int(status.read_text().partition("VmRSS:")[2].split()[0]) if status.exists() else 0

large = bytes(16 << 20)
del large  # from here on glibc, left alone, takes even such sizes from its pool, and keeps twice as much
before = resident_kib()
pieces = [bytes([number]) * (200 << 10) for number in range(150)]
del pieces
if sys.argv[1] == "frugal":
    return_freed_memory()
print(resident_kib() - before)
"""


def _kept_kib(way: str) -> int:
    done = subprocess.run([sys.executable, "-c", BURST, way], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_what_a_burst_took_goes_back_to_the_system() -> None:
    frugal, plain = _kept_kib("frugal"), _kept_kib("plain")
    assert frugal < 4096
    if platform.libc_ver()[0] == "glibc":
        assert plain > frugal + 8192, "left alone the memory stays, so it is the call that gives it back"
