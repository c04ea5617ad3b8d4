"""Setting up a session with a known sibling on loopback, beside py-libp2p's host that connects and opens a stream."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import session_run
from bench.household import environment
from bench.measure import PATIENCE_S, Bench, busy_s

OURS, PEER = "ours", "libp2p"
DIALS_MIN = 10


def run(bench: Bench) -> None:
    """Each figure is one dial: TCP, Noise, yamux, and then ours compares chains and certificates until the session is
    open on this side; libp2p's host runs no identify here and echoes one message."""
    dials = max(DIALS_MIN, 5 * bench.repeats)
    found = {who: _measured(who, bench.folder / who, dials) for who in (OURS, PEER)}
    for what, unit, key in (("session set-up to a known sibling", "s", "wall_s"),
                            ("session set-up, both devices", "CPU s", "cpu_s")):
        bench.row(what, unit, found[OURS][key], "libp2p: connect, stream, echo", found[PEER][key])
    bench.row("import of what a dial needs", "CPU s", found[OURS]["import_s"], "import libp2p", found[PEER]["import_s"])


def _measured(who: str, folder: Path, dials: int) -> dict[str, list[float]]:
    """The sibling answers in one process, another one dials; both are new."""
    folder.mkdir()
    sibling = _start("answer", who, folder)
    try:
        address = _said(sibling)["address"]
        dialling = _start("dial", who, folder, address)
        try:
            figures: dict[str, list[float]] = {"wall_s": [], "cpu_s": [], "import_s": [_said(dialling)["import_s"]]}
            for _ in range(dials):
                before = busy_s(sibling.pid) + busy_s(dialling.pid)
                assert dialling.stdin is not None
                dialling.stdin.write("again\n")
                dialling.stdin.flush()
                figures["wall_s"].append(_said(dialling)["wall_s"])
                time.sleep(session_run.REST_S)
                figures["cpu_s"].append(busy_s(sibling.pid) + busy_s(dialling.pid) - before)
        finally:
            dialling.kill()
            dialling.communicate()
    finally:
        sibling.kill()
        sibling.communicate()
    return figures


def _start(role: str, who: str, folder: Path, address: str = "") -> subprocess.Popen[str]:
    line = [sys.executable, str(Path(session_run.__file__)), role, who, str(folder), address]
    return subprocess.Popen(line, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process of the session bench ended with {process.wait(PATIENCE_S)}")
    found: dict[str, Any] = json.loads(line)
    return found
