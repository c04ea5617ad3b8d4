"""One run of our averaging, for `averaging`: prints the digests and what the process took as JSON."""

from __future__ import annotations

import json
import resource
import sys

from hinet_simnet.averaging import Averaging, run_averaging

if __name__ == "__main__":
    done = run_averaging(Averaging(share=float(sys.argv[1])), seed=1)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024,
                      "model": done.model_digest, "trace": done.trace_digest, "mean": done.rounds[-1][1]}))
