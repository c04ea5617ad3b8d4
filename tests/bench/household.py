"""Two real agents on loopback, as processes of their own, driven by the command line only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import measure


def environment() -> dict[str, str]:
    """No home of the person who runs this."""
    return {name: value for name, value in os.environ.items() if name not in ("HINET_HOME", "HINET_DEBUG")}


class Node:
    """One device: its home and, once started, its agent."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.home = name, folder / name
        self._log = folder / f"{name}.log"
        self.agent: subprocess.Popen[str] | None = None
        self.addresses: list[str] = []

    def line(self, *arguments: str) -> list[str]:
        return [str(Path(sys.executable).with_name("hinet-node")), "--home", str(self.home), *arguments]

    def json(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(self.line(*arguments, "--json"), env=environment(), capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=measure.PATIENCE_S, check=False)
        if done.returncode:
            raise RuntimeError(f"hinet-node {' '.join(arguments[:2])}: {done.stderr[-500:]}{done.stdout[-500:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def start(self, static: Sequence[str] = ()) -> None:
        """Run the agent; returns when it says that it is ready."""
        known = [part for address in static for part in ("--static", address)]
        with self._log.open("a") as log:
            self.agent = subprocess.Popen(
                self.line("run", "--listen", "127.0.0.1", "--no-discovery", "--json", "--quiet", *known),
                env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.agent.stdout is not None
        ready = self.agent.stdout.readline()
        if not ready:
            raise RuntimeError(f"the agent of {self.name} did not start: {self._log.read_text()[-500:]}")
        self.addresses = json.loads(ready)["addresses"]

    @property
    def process_id(self) -> int:
        assert self.agent is not None, "start it first"
        return self.agent.pid

    def stop(self) -> None:
        if self.agent is not None:
            self.agent.terminate()
            try:
                self.agent.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self.agent.kill()
                self.agent.communicate()
            self.agent = None

    def packs(self) -> set[str]:
        """Packs under their final names: written, flushed and renamed."""
        return {entry.name for entry in (self.home / "vault" / "packs").rglob("*") if entry.is_file()}


def found(folder: Path, name: str = "first") -> Node:
    """A home with an identity of its own, no agent running."""
    node = Node(folder, name)
    node.json("init", "--name", name, "--tier", "cloud", "--words-file", str(folder / f"{name}.words"))
    return node


@contextmanager
def pair(folder: Path) -> Iterator[tuple[Node, Node]]:
    """Two devices of one household, their agents running and connected."""
    folder.mkdir(parents=True, exist_ok=True)
    first, second = found(folder), Node(folder, "second")
    try:
        first.start()
        inviting = subprocess.Popen(first.line("invite", "--yes", "--json"), env=environment(), text=True,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert inviting.stdout is not None
        code = json.loads(inviting.stdout.readline())["code"]
        second.json("join", code, "--name", "second", "--tier", "laptop", "--address", first.addresses[0])
        inviting.communicate(timeout=measure.PATIENCE_S)
        second.start(first.addresses)
        measure.until(lambda: "connected" in [device["state"] for device in second.json("status")["devices"]],
                      every_s=0.2)
        yield first, second
    finally:
        for node in (second, first):
            node.stop()
