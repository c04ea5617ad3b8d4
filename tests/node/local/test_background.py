"""`up`, `down` and `logs` with real agents on loopback, started and stopped as a person does it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hinet_node import home
from hinet_node.cli import root
from hinet_node.local import background, unit
from hinet_node.local.client import agent_answers
from hinet_node.local.unit_text import systemd_text

Line = Callable[..., subprocess.CompletedProcess[str]]
LOOPBACK = 'listen = ["127.0.0.1"]\ninterface = "lo"\n'


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    """Runs one command line in a home of its own; whatever agent is left at the end is stopped."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    folder = tmp_path / "home"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "hinet_node", "--home", str(folder), *arguments],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False)

    try:
        assert run("init", "--name", "first", "--words-file", str(tmp_path / "words")).returncode == 0
        (folder / "config.toml").write_text(LOOPBACK)
        yield run
    finally:
        holder = home.lock_holder(folder)
        if holder:
            os.kill(holder, signal.SIGKILL)


def found(done: subprocess.CompletedProcess[str], code: int = 0) -> dict[str, Any]:
    assert done.returncode == code, done.stdout + done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_up_gives_the_agent_the_limit_that_was_asked_for_and_status_shows_it(line: Line) -> None:
    assert found(line("up", "--rate", "fast", "--json"), 2)["code"] == "E_USAGE"
    found(line("up", "--rate", "5M", "--json"))
    assert found(line("status", "--json"))["vault"]["rate"] == 5_000_000
    assert "at most at 5 MB/s, each way" in line("status").stdout


def test_up_returns_when_the_agent_answers_and_down_when_it_has_ended(line: Line, tmp_path: Path) -> None:
    begun = found(line("up", "--json"))
    assert (begun["started"], begun["by"]) == (True, "process")
    assert begun["process_id"] == home.lock_holder(tmp_path / "home")
    assert os.getsid(begun["process_id"]) == begun["process_id"], "the end of this terminal would be its end"
    assert found(line("status", "--json"))["agent"]["pid"] == begun["process_id"]
    assert background.is_agent(begun["process_id"]) or not Path("/proc/self").exists()
    assert not background.is_agent(os.getpid())
    again = found(line("up", "--json"))
    assert (again["started"], again["process_id"]) == (False, begun["process_id"])
    assert line("status", "--check").returncode == 0

    log = line("logs", "-n", "1000").stdout
    assert "first is ready" in log
    assert found(line("logs", "-n", "1", "--json"))["lines"] == [log.rstrip("\n").split("\n")[-1]]

    assert found(line("down", "--json"))["stopped"]
    assert not agent_answers(tmp_path / "home")
    assert home.lock_holder(tmp_path / "home") is None
    assert not (tmp_path / "home" / "run" / "agent.sock").exists()
    assert found(line("down", "--json"))["stopped"] is False


def test_of_two_that_start_it_at_once_both_find_it_running(line: Line, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        begun = [found(done) for done in pool.map(lambda _: line("up", "--json"), range(2))]
    assert sorted(one["started"] for one in begun) == [False, True]
    assert {one["process_id"] for one in begun} == {home.lock_holder(tmp_path / "home")}


def test_what_keeps_the_agent_from_starting_is_said_with_its_own_code(line: Line, tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        error = found(line("up", "--port", str(port), "--json"), 5)
    assert error["code"] == "E_PORT_BUSY"
    assert str(port) in error["what"]
    (tmp_path / "home" / "config.toml").write_text("port = 'many'\n")
    assert "port" in found(line("up", "--json"), 2)["what"]
    (tmp_path / "home" / "config.toml").write_text(LOOPBACK)
    with home.locked(tmp_path / "home"):
        assert found(line("up", "--json"), 6)["code"] == "E_HOME_LOCKED"
    (tmp_path / "home" / "device.key").chmod(0o644)
    assert found(line("up", "--json"), 4)["code"] == "E_KEY_OPEN"
    assert not agent_answers(tmp_path / "home")


MANAGER = """#!/bin/sh
# A user manager of one unit, as far as these commands need it: it runs what the unit's ExecStart says.
alive() { test -s "$RECORD.pid" && kill -0 "$(cat "$RECORD.pid")" 2>/dev/null; }
begin() { setsid $(sed -n 's/^ExecStart=//p' "$UNIT") < /dev/null > /dev/null 2>&1 & echo $! > "$RECORD.pid"; }
end() {
  alive && kill "$(cat "$RECORD.pid")"
  for i in $(seq 100); do alive || break; sleep 0.05; done
  rm -f "$RECORD.pid"
}
echo "$*" >> "$RECORD"
case "$*" in
  *is-active*) alive ;;
  *restart*) end; begin ;;
  *start*) alive || begin ;;
  *stop*|*disable*) end ;;
esac
"""


def test_where_a_service_is_installed_up_and_down_go_through_its_manager(
        line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path / "home")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "systemctl").write_text(MANAGER)
    (tmp_path / "bin" / "systemctl").chmod(0o755)
    service = unit.Service("systemd", "hinet-node.service", tmp_path / "hinet-node.service", systemd_text(
        Path(folder), sys.executable))
    service.path.write_text(service.text)
    for name, value in (("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"),
                        ("RECORD", str(tmp_path / "record")), ("UNIT", str(service.path)),
                        ("PYTHONPATH", os.pathsep.join(sys.path))):
        monkeypatch.setenv(name, value)
    begun = background.start(folder, service)
    assert (begun.changed, begun.by) == (True, "service")
    assert begun.process_id == int((tmp_path / "record.pid").read_text())
    assert background.start(folder, service) == background.Outcome(False, "service", begun.process_id)
    assert background.stop(folder, service) == background.Outcome(True, "service", begun.process_id)
    assert home.lock_holder(folder) is None
    assert not background.stop(folder, service).changed
    calls = [call for call in (tmp_path / "record").read_text().splitlines() if "is-active" not in call]
    assert calls == ["--user start hinet-node.service", "--user stop hinet-node.service"]


def test_a_service_is_installed_restarted_and_removed_by_its_commands(
        line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "home"
    (tmp_path / "bin").mkdir()
    for name, text in (("systemctl", MANAGER), ("journalctl", "#!/bin/sh\necho the journal of \"$@\"\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setattr(unit, "has_systemd", lambda: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = unit.describe(folder, default_home=False).path
    for name, value in (("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"), ("UNIT", str(path)),
                        ("RECORD", str(tmp_path / "record")), ("PYTHONPATH", os.pathsep.join(sys.path))):
        monkeypatch.setenv(name, value)

    def service(*arguments: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert root.main(["--home", str(folder), "--json", "service", *arguments]) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    assert service("restart", code=1)["code"] == "E_NO_SERVICE"
    found(line("up", "--json"))
    assert service("install", code=6)["code"] == "E_AGENT_RUNNING"
    assert not path.exists()
    found(line("down", "--json"))
    assert service("install")["changed"] is True
    first = home.lock_holder(folder)
    assert service("status")["running"] is True
    assert service("install")["changed"] is False
    assert home.lock_holder(folder) == first, "installing twice restarts nothing"
    service("restart")
    assert home.lock_holder(folder) not in (None, first)
    shown = line("service", "logs", "-n", "3")
    assert shown.returncode == 0
    assert "is ready" in service("logs")["lines"][-1]
    assert service("uninstall")["removed"] is True
    assert (path.exists(), service("status")["installed"]) == (False, False)
    assert service("uninstall")["removed"] is False


def test_an_agent_that_runs_beside_an_installed_service_is_stopped_too(line: Line, tmp_path: Path) -> None:
    service = unit.Service("systemd", "hinet-node.service", tmp_path / "hinet-node.service", "")
    found(line("up", "--json"))
    service.path.write_text("")
    assert background.stop(str(tmp_path / "home"), service).by == "process"
    assert home.lock_holder(tmp_path / "home") is None


def test_up_before_init_says_what_to_type(line: Line, tmp_path: Path) -> None:
    done = line("--home", str(tmp_path / "other"), "up")
    assert done.returncode == 4
    assert "hinet-node init" in done.stderr
    assert not (tmp_path / "other").exists()
