"""How fast the command line answers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from bench import household
from bench.measure import Bench, Used, command, timed
from hinet_node.local.client import Client

TYPER = "python -c 'import typer'"
ASKED = 20


def run(bench: Bench) -> None:
    """Interleaved, so that a busy moment meets all of them."""
    times = max(5, 2 * bench.repeats)
    node = household.found(bench.folder)
    peers = {TYPER: [sys.executable, "-c", "import typer"]}
    if bench.has("borg", "borgbackup"):
        peers["borg --version"] = [shutil.which("borg") or "borg", "--version"]
    ours = {"--help": node.line("--help"), "version": node.line("version"), "status, no agent": node.line("status")}
    found = _measured({**peers, **ours}, times)
    node.start()
    try:
        found |= _measured({"status, agent running": node.line("status"), "status --check": node.line(
            "status", "--check")}, times)
        answers: list[float] = []
        for _ in range(ASKED):
            with timed(answers), Client(node.home) as client:
                client.call("status", timeout_s=30.0)
    finally:
        node.stop()
    bench.row("status, the agent's answer alone", "s", answers, "hinet-node --help",
              [one.wall_s for one in found["--help"]])
    for name in [*ours, "status, agent running", "status --check"]:
        for peer in ("borg --version", TYPER):
            theirs = found.get(peer, [])
            bench.row(f"hinet-node {name}", "s", [one.wall_s for one in found[name]], peer,
                      [one.wall_s for one in theirs])
            bench.row(f"hinet-node {name}", "CPU s", [one.cpu_s for one in found[name]], peer,
                      [one.cpu_s for one in theirs])


def _measured(lines: dict[str, Sequence[str]], times: int) -> dict[str, list[Used]]:
    for line in lines.values():
        command(line, environment=household.environment())  # byte code and page cache
    found: dict[str, list[Used]] = {name: [] for name in lines}
    for _ in range(times):
        for name, line in lines.items():
            found[name].append(command(line, environment=household.environment()))
    return found
