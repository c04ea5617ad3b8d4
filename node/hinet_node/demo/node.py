"""One node of the demo: a home of its own, an agent as a process of its own, driven by its command line and its socket.

Nothing is shared between nodes but the network. The agent ends when the demo does, however that ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hinet_node.errors import NodeError
from hinet_node.local.client import Client, agent_answers

START_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_S = 600.0
STOP_GRACE_S = 15.0
PR_SET_PDEATHSIG = 1


class DemoNode:
    """A device of the demo's household."""

    def __init__(self, folder: Path, name: str, tier: str, role: str = "member") -> None:
        self.home = folder / name
        self.name = name
        self.tier = tier
        self.role = role
        self._process: subprocess.Popen[bytes] | None = None
        self._output = folder / f"{name}.out"

    def command(self, *arguments: str, typed: str = "") -> dict[str, Any]:
        """Run one command line of this node with `--json`; `typed` goes to its stdin.

        Errors: what the command reported, with its code and exit code.
        """
        try:
            done = subprocess.run(self._line(*arguments), input=typed.encode(), capture_output=True,
                                  env=child_environment(), timeout=COMMAND_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise NodeError(f"`hinet-node {arguments[0]}` on {self.name} did not end within "
                            f"{COMMAND_TIMEOUT_S:.0f} s", code="E_DEMO") from None
        lines = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.startswith("{")]
        result: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            what = str(result.get("what") or (said[-1] if said else "it said nothing"))
            error = NodeError(f"`hinet-node {arguments[0]}` on {self.name} failed: {what}",
                              next_step=result.get("next"), code=str(result.get("code") or "E_DEMO"))
            error.exit_code = done.returncode
            raise error
        return result

    def launch(self) -> None:
        """Start the agent, without waiting for it."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._line("run", "--quiet", "--listen", "127.0.0.1"), stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, env=child_environment(), start_new_session=True, preexec_fn=_end_with_parent)

    def await_ready(self) -> None:
        """Return once the agent answers on its socket. Errors: `NodeError` with its last words."""
        assert self._process is not None, "launch comes first"
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not agent_answers(self.home):
            if self._process.poll() is not None:
                raise NodeError(f"the agent of {self.name} ended at its start: {self._last_words()}", code="E_DEMO")
            if time.monotonic() > deadline_s:
                raise NodeError(f"the agent of {self.name} did not start within {START_TIMEOUT_S:.0f} s", code="E_DEMO")
            time.sleep(0.1)

    def call(self, verb: str, args: Mapping[str, Any] | None = None,
             on_progress: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any]:
        """A verb of the agent's local API, as the commands use it."""
        with Client(self.home) as client:
            return client.call(verb, args, on_progress=on_progress)

    def stop(self) -> None:
        """Ask the agent to end; make sure that it has. Safe to repeat."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def packs(self) -> dict[str, int]:
        """Names (digests) and bytes of the packs in this home."""
        folder = self.home / "vault" / "packs"
        return {path.name: path.stat().st_size for path in sorted(folder.rglob("*"))
                if path.is_file() and not path.name.startswith(".") and "." not in path.name}

    def _line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "hinet_node", "--home", str(self.home), "--json", *arguments]

    def _last_words(self) -> str:
        lines = self._output.read_text("utf-8", "replace").strip().splitlines() if self._output.exists() else []
        return lines[-1] if lines else "it said nothing"


def child_environment() -> dict[str, str]:
    """The environment of a node's processes: the same installation, no home of the person who runs the demo."""
    environment = {name: value for name, value in os.environ.items() if name not in ("HINET_HOME", "HINET_DEBUG")}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    return environment


def _end_with_parent() -> None:
    """In the child, before it becomes the agent: be told to end when the demo's process is gone (Linux).

    The demo starts agents from its main thread, whose end is the end of the process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
