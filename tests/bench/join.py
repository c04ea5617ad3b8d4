"""From `join CODE` to a certified member on loopback, and what of it the key exchange takes, beside magic-wormhole."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import household
from bench.household import Node, environment, inviting
from bench.measure import PATIENCE_S, Bench, command, until

JOINS_MIN = 5
WORMHOLE = os.environ.get("HINET_BENCH_WORMHOLE", "")
"""A Python that has magic-wormhole and magic-wormhole-mailbox-server."""
PEER = "magic-wormhole: receive"
MARKS = ("Looking for", "Found it at", "invites this machine")


def run(bench: Bench) -> None:
    """Each figure is a new device: the command's start, the search on the LAN, the exchange, the chain on its disk."""
    joins = max(JOINS_MIN, bench.repeats)
    found: dict[str, list[float]] = {}
    theirs: list[list[float]] = [[], []]
    with household.house(bench.folder / "house", ("first",), discover=True) as (first,), _mailbox(bench) as relay:
        for number in range(joins):
            for name, value in _joined(first, Node(bench.folder / "house", f"new-{number}")).items():
                found.setdefault(name, []).append(value)
            if relay:
                for kept, value in zip(theirs, _received(relay, bench.folder), strict=True):
                    kept.append(value)
    bench.row("join CODE, the whole command", "s", found["whole"], PEER, theirs[0])
    bench.row("join CODE, the whole command", "CPU s", found["cpu"], PEER, theirs[1])
    for name, what in (("start", "until it looks for the inviter"), ("search", "until it has found it"),
                       ("exchange", "key exchange: from there to both having proved the code"),
                       ("certificate", "certificate, chain on disk, and the command's end")):
        bench.row(f"of it: {what}", "s", found[name], "none")


def _joined(first: Node, node: Node) -> dict[str, float]:
    """The stages by the lines that `join` prints when it enters them."""
    waiting, code = inviting(first)
    began, marks = time.perf_counter(), list[float]()
    process = subprocess.Popen(node.line("join", code, "--name", node.name, "--tier", "laptop", "--no-service"),
                               env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if len(marks) < len(MARKS) and MARKS[len(marks)] in line:
            marks.append(time.perf_counter())
    process.stderr.close()
    _, status, used = os.wait4(process.pid, 0)
    ended = time.perf_counter()
    process.returncode = os.waitstatus_to_exitcode(status)
    waiting.communicate(timeout=PATIENCE_S)
    if process.returncode or len(marks) != len(MARKS):
        raise RuntimeError(f"{node.name} did not join")
    looking, seen, proved = marks
    return {"whole": ended - began, "cpu": used.ru_utime + used.ru_stime, "start": looking - began,
            "search": seen - looking, "exchange": proved - seen, "certificate": ended - proved}


@contextmanager
def _mailbox(bench: Bench) -> Iterator[str]:
    """A mailbox server of magic-wormhole on loopback: its address, "" where there is none."""
    if not WORMHOLE:
        bench.notes.append("HINET_BENCH_WORMHOLE names no Python with magic-wormhole and its mailbox server, so its "
                           "column is empty.")
        yield ""
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [str(Path(WORMHOLE).with_name("twist")), "wormhole-mailbox", f"--port=tcp:{port}:interface=127.0.0.1",
            "--usage-db=:memory:", "--channel-db=:memory:"]
    server = subprocess.Popen(line, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, cwd=bench.folder)
    try:
        until(lambda: _answers(port))
        yield f"ws://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


def _received(relay: str, folder: Path) -> tuple[float, float]:
    """Seconds and processor seconds of `wormhole receive` for a short text that somebody waits to send."""
    wormhole = [str(Path(WORMHOLE).with_name("wormhole")), "--relay-url", relay]
    sender = subprocess.Popen([*wormhole, "send", "--no-qr", "--text", "hello"], env=environment(), cwd=folder,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert sender.stderr is not None
    code = next(line.split()[-1] for line in sender.stderr if line.startswith("Wormhole code is:"))
    used = command([*wormhole, "receive", "--accept-file", code], environment=environment())
    sender.communicate(timeout=PATIENCE_S)
    return used.wall_s, used.cpu_s


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
