"""What `run` becomes: the same process, without the parser, importing nothing from the folder it was typed in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hinet_node.home import lock_holder

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "HINET_DEBUG": ""}
PATIENCE_S = 60
PARSERS = ("typer", "click", "rich", "pydantic", "argparse")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("process")
    subprocess.run([sys.executable, "-m", "hinet_node", "--home", str(folder / "home"), "init", "--name", "first",
                    "--words-file", str(folder / "words"), "--json"], env=ENVIRONMENT, check=True, capture_output=True,
                   stdin=subprocess.DEVNULL, timeout=PATIENCE_S)
    return folder / "home"


def _ran(home: Path, *, cwd: Path | None = None, **extra: str) -> tuple[int, int, str]:
    """The process id that was started, the one that the home says it is locked by, and what stood on stderr."""
    log = home.with_suffix(".log")
    with log.open("w") as into:
        process = subprocess.Popen([sys.executable, "-m", "hinet_node", "--home", str(home), "run", "--no-discovery",
                                    "--listen", "127.0.0.1", "--json"], env={**ENVIRONMENT, **extra}, cwd=cwd,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=into, text=True)
    assert process.stdout is not None
    ready = process.stdout.readline()
    locked_by = lock_holder(home) or 0
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert ready, log.read_text()
    assert json.loads(ready)["state"] == "ready"
    assert process.returncode == 0, log.read_text()
    return process.pid, locked_by, log.read_text()


def test_the_running_agent_holds_no_parser_of_command_lines(home: Path) -> None:
    _, _, errors = _ran(home, PYTHONPROFILEIMPORTTIME="1")
    imported = [line.rpartition("|")[2].strip() for line in errors.splitlines() if line.startswith("import time")]
    starts = [number for number, name in enumerate(imported) if name == "site"]
    assert len(starts) == 2, "one process read the line, the other one is the agent"
    agents = imported[starts[1]:]
    assert "hinet_node.agent" in agents
    assert "typer" in imported[:starts[1]]
    assert [name for name in agents if name in PARSERS] == []


def test_the_agent_is_known_by_its_line_as_what_run_started() -> None:
    """`up` looks for the word where the system lists processes, to tell an agent that starts from another command."""
    program = ("import sys; from hinet_node.cli import agent_process as one\n"
               "one.os.execv = lambda path, line: print(path == sys.executable, line[-2], line[-1])\n"
               "one.become(one.Wish('/a', static=('/ip4/192.0.2.1/tcp/1',)))")
    said = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=True,
                          timeout=PATIENCE_S).stdout.split(maxsplit=2)
    assert said[:2] == ["True", "run"]
    assert json.loads(said[2])["static"] == ["/ip4/192.0.2.1/tcp/1"]


def test_the_agent_keeps_the_process_id_that_run_was_started_with(home: Path) -> None:
    started, locked_by, _ = _ran(home)
    assert started == locked_by


def test_the_agent_imports_nothing_from_the_folder_that_it_was_started_in(home: Path, tmp_path: Path) -> None:
    for name in ("trio", "msgpack", "zeroconf", "libp2p"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the folder that run was typed in')")
    _ran(home, cwd=tmp_path)
