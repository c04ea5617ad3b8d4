"""Packs between two real agents of which first one, then the other is killed (SIGKILL) in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HINET_DEBUG": ""}
PATIENCE_S = 120.0
PACK_BYTES = 32 << 20


class Pair:
    """Two homes, and the agents that run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents: dict[str, subprocess.Popen[str]] = {}

    def line(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "hinet_node", "--home", str(self.folder / name), *arguments]

    def json(self, name: str, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(self.line(name, *arguments, "--json"), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, env=ENVIRONMENT, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def begin(self, name: str, *arguments: str) -> str:
        """Run an agent; its address."""
        with (self.folder / f"{name}.log").open("a") as log:
            agent = subprocess.Popen(self.line(name, "run", "--listen", "127.0.0.1", "--no-discovery", "--json",
                                               *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=log, text=True, env=ENVIRONMENT)
        self.agents[name] = agent
        assert agent.stdout is not None
        address: str = json.loads(agent.stdout.readline())["addresses"][0]
        return address

    def kill(self, name: str) -> None:
        agent = self.agents.pop(name)
        agent.send_signal(signal.SIGKILL)
        agent.communicate()

    def packs(self, name: str) -> dict[str, int]:
        return {entry.name: entry.stat().st_size for entry in (self.folder / name / "vault" / "packs").rglob("*")
                if entry.is_file()}

    def sent_bytes(self) -> int:
        sent: int = self.json("first", "status")["vault"]["sent_bytes"]
        return sent


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    try:
        yield pair
    finally:
        for name in list(pair.agents):
            pair.kill(name)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.05)


def test_after_kills_of_the_receiver_and_of_the_sender_less_than_one_pack_was_sent_again(pair: Pair) -> None:
    pair.json("first", "init", "--name", "first", "--tier", "cloud", "--words-file", str(pair.folder / "words"))
    address = pair.begin("first", "--rate", "40M")
    inviting = subprocess.Popen(pair.line("first", "invite", "--yes", "--json"), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert inviting.stdout is not None
    code = json.loads(inviting.stdout.readline())["code"]
    pair.json("second", "join", code, "--name", "second", "--tier", "laptop", "--address", address)
    inviting.communicate(timeout=PATIENCE_S)
    source = pair.folder / "film.bin"
    with source.open("wb") as file:
        for _ in range(32):
            file.write(os.urandom(4 << 20))
    pair.json("first", "vault", "add", str(source))
    before = pair.sent_bytes()
    pair.begin("second", "--static", address)
    until(lambda: len(pair.packs("second")) >= 1)
    time.sleep(0.3)
    pair.kill("second")
    pair.begin("second", "--static", address)
    until(lambda: len(pair.packs("second")) >= 3)
    sent = pair.sent_bytes() - before
    pair.kill("first")
    pair.begin("first", "--rate", "40M")
    until(lambda: pair.packs("first").keys() <= pair.packs("second").keys())
    sent += pair.sent_bytes()
    packs = pair.packs("first")
    assert len(packs) >= 4
    assert sum(packs.values()) - PACK_BYTES // 2 < sent < sum(packs.values()) + PACK_BYTES
    pair.json("second", "vault", "verify", "--deep")
    restored = pair.folder / "restored.bin"
    pair.json("second", "vault", "get", "film.bin", "--out", str(restored))
    assert restored.read_bytes() == source.read_bytes()
