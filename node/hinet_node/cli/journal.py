"""The agent's log: one readable line for each event, on stderr and in `log/agent.log`.

The file is kept short: at 4 MiB it becomes `agent.log.old`. A full disk silences the file, never the agent.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from hinet_node.cli.output import clean

FILE_BYTES_MAX = 4 * 1_048_576


class Journal:
    """Callable: `journal("kitchen connected")`. Control characters, which peers could smuggle in, become `?`."""

    def __init__(self, path: Path, *, to_stderr: bool = True) -> None:
        self._path = path
        self._to_stderr = to_stderr

    def __call__(self, line: str) -> None:
        text = clean(line)
        now = time.localtime()
        if self._to_stderr:
            with suppress(OSError):
                sys.stderr.write(f"{time.strftime('%H:%M:%S', now)} {text}\n")
                sys.stderr.flush()
        with suppress(OSError):
            self._append(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z', now)} {text}\n")

    def _append(self, line: str) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size > FILE_BYTES_MAX:
            self._path.replace(self._path.with_name(self._path.name + ".old"))
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(line)
