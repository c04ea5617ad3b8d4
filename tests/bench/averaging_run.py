"""One run of our averaging, for `averaging`: prints the digests and what the process took as JSON."""

from __future__ import annotations

import json
import re
import resource
import sys
from pathlib import Path

from hinet_simnet.averaging import Averaging, run_averaging


def peak_mib() -> float:
    """Linux hands a parent's `ru_maxrss` down through exec, so there the process's own high-water mark is read."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    done = run_averaging(Averaging(share=float(sys.argv[1])), seed=1)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_mib": peak_mib(),
                      "model": done.model_digest, "trace": done.trace_digest, "mean": done.rounds[-1][1]}))
