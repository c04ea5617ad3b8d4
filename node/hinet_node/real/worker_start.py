"""The first lines that a worker process runs: its limits, its tie to the agent's life, then `hinet_tiers.worker`.

Started by `compute` as `python -P -m hinet_node.real.worker_start LIFELINE_FD MEMORY_BYTES_MAX MODULE`. No thread or
library of the worker exists yet at this point, so the limits hold for all that follows. The lifeline is the reading
end of a pipe that only the agent can write to: it ends when the agent does, however it dies. (The kernel's own
parent-death signal follows the *thread* that forked, and trio forks in threads that come and go.)
"""

from __future__ import annotations

import contextlib
import os
import resource
import runpy
import signal
import sys
import threading

MEMORY_SLACK_BYTES = 512 * 1024 * 1024
"""Address space beyond the limit on resident memory that is still given: thread stacks and reserved arenas."""


def die_with(lifeline_fd: int) -> None:
    """Block until the agent is gone, then end this process and all that it started."""
    with contextlib.suppress(OSError):
        while os.read(lifeline_fd, 1):
            pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def limit(memory_bytes_max: int) -> None:
    """No core files; private memory bounded when a limit is given; first choice of the kernel when memory runs out."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        if memory_bytes_max:
            allowed = memory_bytes_max + MEMORY_SLACK_BYTES
            resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123
        score.write("800")


def main() -> None:
    lifeline_fd, memory_bytes_max, module = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    limit(memory_bytes_max)
    threading.Thread(target=die_with, args=(lifeline_fd,), name="lifeline", daemon=True).start()
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
