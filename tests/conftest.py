"""What holds for every test: Ctrl-C works here as it does for somebody at a terminal."""

from __future__ import annotations

import signal

# A shell without job control starts its background jobs with SIGINT ignored, and children inherit that: a suite that
# was started so would wait for ever on the programs that it interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
