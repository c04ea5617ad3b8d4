"""Real agents on loopback, as processes of their own, driven by the command line only."""

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

    def start(self, static: Sequence[str] = (), *, discover: bool = False) -> None:
        """Run the agent; returns when it says that it is ready. `discover` announces it on the LAN, as is usual."""
        known = [part for address in static for part in ("--static", address)]
        known += [] if discover else ["--no-discovery"]
        with self._log.open("a") as log:
            self.agent = subprocess.Popen(
                self.line("run", "--listen", "127.0.0.1", "--json", "--quiet", *known),
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

    def connected(self) -> int:
        """How many siblings it has a session with."""
        return [device["state"] for device in self.json("status")["devices"]].count("connected")

    def packs(self) -> set[str]:
        """Packs under their final names: written, flushed and renamed."""
        return {entry.name for entry in (self.home / "vault" / "packs").rglob("*") if entry.is_file()}


def found(folder: Path, name: str = "first") -> Node:
    """A home with an identity of its own, no agent running."""
    node = Node(folder, name)
    node.json("init", "--name", name, "--tier", "cloud", "--words-file", str(folder / f"{name}.words"))
    return node


def inviting(node: Node, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """`invite` with approval in advance: the waiting process and its code."""
    process = subprocess.Popen(node.line("invite", "--yes", "--json", *arguments), env=environment(), text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["code"]


@contextmanager
def house(folder: Path, names: Sequence[str], *, discover: bool = False) -> Iterator[list[Node]]:
    """The devices of one household, their agents running and each connected with each."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = [found(folder, names[0]), *(Node(folder, name) for name in names[1:])]
    try:
        nodes[0].start(discover=discover)
        for node in nodes[1:]:
            waiting, code = inviting(nodes[0])
            node.json("join", code, "--name", node.name, "--tier", "laptop", "--address", nodes[0].addresses[0])
            waiting.communicate(timeout=measure.PATIENCE_S)
            node.start([] if discover else nodes[0].addresses, discover=discover)
        for node in nodes:
            measure.until(lambda node=node: node.connected() == len(nodes) - 1, every_s=0.2)
        yield nodes
    finally:
        for node in reversed(nodes):
            node.stop()


@contextmanager
def pair(folder: Path) -> Iterator[tuple[Node, Node]]:
    """Two devices of one household, connected, without the LAN."""
    with house(folder, ("first", "second")) as (first, second):
        yield first, second
