"""The background service: the unit's text, and what is asked of the service manager (a recorder stands for it)."""

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hinet_node.cli import root
from hinet_node.errors import NodeError
from hinet_node.local import unit
from hinet_node.local.unit import Service
from hinet_node.local.unit_text import NO_RESTART, launchd_text, systemd_text

RECORDER = """#!/bin/sh
echo "$0 $*" | sed 's|.*/||' >> "$RECORD"
case "$*" in
  *is-active*) test -e "$RECORD.active" ;;
  *"$FAIL"*) echo "Failed to connect to bus: No medium found" >&2; exit 1 ;;
  *" start "*|*restart*) : > "$RECORD.active" ;;
  *" stop "*|*disable*) rm -f "$RECORD.active" ;;
esac
"""


class Manager:
    """The calls that a fake systemctl was asked for."""

    def __init__(self, record: Path) -> None:
        self._record = record

    def calls(self) -> list[str]:
        """Since the last look, without the questions."""
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        self._record.unlink(missing_ok=True)
        return [line.removeprefix("systemctl --user ") for line in lines if "is-active" not in line]


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manager:
    for name in ("systemctl", "journalctl"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(RECORDER)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.setenv("FAIL", "nothing fails")
    return Manager(tmp_path / "record")


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service("systemd", "hinet-node.service", tmp_path / "units" / "hinet-node.service", systemd_text(
        tmp_path / "home", sys.executable))


def test_the_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    """Keys and values by systemd's own check where it is installed; on other machines the keys that it must have."""
    texts = [systemd_text(Path('/with space/100%/"q"/$HOME'), sys.executable, namespaces=one) for one in (True, False)]
    for text in texts:
        for line in ("NoNewPrivileges=yes", "UMask=0077", "Restart=on-failure", "WantedBy=default.target",
                     f"RestartPreventExitStatus={NO_RESTART}"):
            assert line in text.split("\n")
        assert '--home "/with space/100%%/\\"q\\"/$$HOME" run' in text
        program = shutil.which("systemd-analyze")
        if program is not None:
            place = tmp_path / "hinet-node.service"
            place.write_text(text)
            said = subprocess.run([program, "verify", "--user", str(place)], capture_output=True, text=True,
                                  check=False, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path),
                                                    "HOME": str(tmp_path)})
            assert (said.returncode, said.stderr) == (0, "")
    assert "PrivateUsers=yes" in texts[0]
    assert "PrivateUsers=yes" not in texts[1], "a system without user namespaces could not start it"


@pytest.mark.parametrize("namespaces", [True, False])
def test_the_unit_closes_nothing_that_the_agent_needs(namespaces: bool) -> None:
    """`vault add /tmp/x` and `vault get --out ~/x` are done by the agent; workers build code and open GPUs; the
    interfaces come from netlink."""
    text = systemd_text(Path("/home/anna/.local/share/hinet"), sys.executable, namespaces=namespaces)
    for closing in ("ProtectHome", "PrivateTmp", "ProtectSystem=strict", "MemoryDenyWriteExecute", "PrivateDevices",
                    "DevicePolicy", "ProtectClock", "PrivateNetwork", "IPAddressDeny", "ReadWritePaths"):
        assert closing not in text
    [families] = [line for line in text.split("\n") if line.startswith("RestrictAddressFamilies=")]
    assert set(families.partition("=")[2].split()) == {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}
    assert ".local/share" not in text.replace("--home /home/anna/.local/share/hinet", "")


def test_the_property_list_is_one_and_names_this_home() -> None:
    found = plistlib.loads(launchd_text("org.hinet.node", Path("/Users/a & b/<hinet>"), "/usr/bin/python3").encode())
    assert found["ProgramArguments"] == ["/usr/bin/python3", "-m", "hinet_node", "--home", "/Users/a & b/<hinet>",
                                         "run", "--quiet"]
    assert (found["RunAtLoad"], found["KeepAlive"], found["Umask"]) == (True, {"SuccessfulExit": False}, 0o077)


def test_units_of_different_homes_have_different_names() -> None:
    names = {unit.describe(Path(place), default_home=False).name for place in ("/a", "/b")}
    assert len(names | {unit.describe(Path("/c"), default_home=True).name}) == 3


def test_installing_twice_changes_nothing_the_second_time(manager: Manager, service: Service) -> None:
    assert unit.install(service)
    assert manager.calls() == ["daemon-reload", "enable hinet-node.service", "restart hinet-node.service"]
    written = service.path.stat().st_mtime_ns
    assert not unit.install(service)
    assert "restart hinet-node.service" not in manager.calls()
    assert service.path.stat().st_mtime_ns == written
    assert service.path.read_text() == service.text
    assert [path.name for path in service.path.parent.iterdir()] == ["hinet-node.service"]
    assert unit.running(service)


def test_a_changed_unit_is_written_anew_and_restarted(manager: Manager, service: Service) -> None:
    unit.install(service)
    manager.calls()
    assert unit.install(Service("systemd", service.name, service.path, service.text + "# newer\n"))
    assert "restart hinet-node.service" in manager.calls()


def test_uninstalling_stops_and_removes_and_twice_is_no_error(manager: Manager, service: Service) -> None:
    unit.install(service)
    manager.calls()
    assert unit.uninstall(service)
    assert manager.calls() == ["disable --now hinet-node.service", "daemon-reload"]
    assert not service.path.exists()
    assert not unit.running(service)
    assert not unit.uninstall(service)
    assert manager.calls() == []


def test_a_manager_that_can_not_be_reached_is_one_clear_error(manager: Manager, service: Service,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "daemon-reload")
    with pytest.raises(NodeError, match="Failed to connect to bus") as caught:
        unit.install(service)
    assert "log in as" in (caught.value.next_step or "")
    assert "systemctl --user daemon-reload" in (caught.value.next_step or "")


def test_the_journal_is_asked_only_for_a_service_that_is_there(manager: Manager, service: Service) -> None:
    assert unit.journal_line(service, 5, follow=True) is None
    unit.install(service)
    line = unit.journal_line(service, 5, follow=True)
    assert line is not None
    assert line[:4] == ["journalctl", "--user", "--unit", "hinet-node.service"]
    assert "--follow" in line
    assert "--follow" not in (unit.journal_line(service, 5, follow=False) or [])


def test_a_machine_without_a_service_manager_says_so() -> None:
    lone = Service("none", "x.service", Path("/nowhere/x.service"), "")
    for act in (unit.install, unit.require_installed):
        with pytest.raises(NodeError) as caught:
            act(lone)
        assert caught.value.code == "E_NO_SERVICE_MANAGER"
        assert "hinet-node up" in (caught.value.next_step or "")


def test_a_dry_run_prints_the_unit_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert root.main(["--home", str(tmp_path / "home"), "service", "install", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert f"--home {tmp_path / 'home'} run" in printed.out
    assert f"would be written to {tmp_path / 'config'}" in printed.err
    assert not (tmp_path / "config").exists()
    assert not (tmp_path / "home").exists()
