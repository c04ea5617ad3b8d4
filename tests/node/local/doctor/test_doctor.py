"""`doctor` on real homes with real faults: what it finds, what --fix mends, and that the bundle holds no secret."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hinet_node import home as homes
from hinet_node.belonging.membership import Membership, draw_root
from hinet_node.cli import root
from hinet_node.local.client import Client
from hinet_node.local.doctor import probe
from hinet_node.local.doctor.mend import _narrow
from hinet_node.real.disk import RealDisk
from hinet_node.real.disk_names import TEMPORARY_PREFIX
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_node.sessions.address_book import AddressBook
from hinet_protocol.chain import make_device_add

Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with an identity, private as `init` makes it."""
    folder = tmp_path / "home"
    assert root.main(["--home", str(folder), "init", "--name", "kitchen-pi", "--words-file",
                      str(tmp_path / "words")]) == 0
    folder.chmod(0o700)
    return folder


@pytest.fixture
def doctor(home: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs it on that home, without the network; the exit code must say whether a check failed."""

    def run(*arguments: str, folder: Path = home) -> dict[str, Any]:
        capsys.readouterr()
        code = root.main(["--home", str(folder), "--json", "doctor", "--no-network", *arguments])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert found["schema"] == "hinet.doctor/1"
        assert code == (1 if found["counts"]["fail"] else 0)
        assert found["ok"] is not bool(found["counts"]["fail"])
        return found

    return run


def state(found: dict[str, Any], name: str) -> str:
    return {check["name"]: check["state"] for check in found["checks"]}[name]


def test_a_fresh_home_has_nothing_that_fails(doctor: Doctor) -> None:
    found = doctor()
    assert found["counts"]["fail"] == 0
    for name in ("home", "keys", "identity", "config", "socket", "disk"):
        assert state(found, name) == "ok"


def test_it_works_before_init_and_makes_nothing(doctor: Doctor, tmp_path: Path) -> None:
    found = doctor("--fix", folder=tmp_path / "none")
    assert (found["counts"]["fail"], state(found, "home"), found["fixed"]) == (0, "warn", [])
    assert not (tmp_path / "none").exists()


def test_open_modes_are_found_and_mended(doctor: Doctor, home: Path) -> None:
    (home / "device.key").chmod(0o644)
    (home / "config.toml").chmod(0o666)
    (home / "invitations").mkdir()
    (home / "invitations" / "x").write_bytes(b"secret")
    (home / "invitations" / "x").chmod(0o640)
    home.chmod(0o755)
    found = doctor()
    assert (state(found, "home"), state(found, "keys")) == ("warn", "fail")
    assert (home / "device.key").stat().st_mode & 0o777 == 0o644, "a look changes nothing"
    mended = doctor("--fix")
    assert len(mended["fixed"]) == 4
    assert (state(mended, "home"), state(mended, "keys")) == ("ok", "ok")
    modes = {name: (home / name).stat().st_mode & 0o777 for name in (".", "device.key", "config.toml", "invitations/x")}
    assert modes == {".": 0o700, "device.key": 0o600, "config.toml": 0o644, "invitations/x": 0o600}
    assert doctor("--fix")["fixed"] == []


def test_a_link_in_the_home_is_not_followed_by_fix(doctor: Doctor, home: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("x")
    (tmp_path / "outside").chmod(0o666)
    (home / "invitations").mkdir()
    (home / "invitations" / "link").symlink_to(tmp_path / "outside")
    doctor("--fix")
    assert _narrow(home / "invitations" / "link", 0o600) == "", "also one that was put there after the look"
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o666


def test_what_the_dead_left_is_found_and_mended(doctor: Doctor, home: Path) -> None:
    path = homes.socket_path(home)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    leftover = home / "vault" / f"{TEMPORARY_PREFIX}1-0"
    leftover.parent.mkdir(exist_ok=True)
    leftover.write_bytes(b"half")
    found = doctor()
    assert (state(found, "socket"), state(found, "leftovers")) == ("warn", "warn")
    mended = doctor("--fix")
    assert len(mended["fixed"]) == 2
    assert (state(mended, "socket"), state(mended, "leftovers")) == ("ok", "ok")
    assert not path.exists()
    assert not leftover.exists()


def test_nothing_is_taken_away_while_another_process_uses_the_home(doctor: Doctor, home: Path) -> None:
    leftover = home / f"{TEMPORARY_PREFIX}1-0"
    leftover.write_bytes(b"half")
    with homes.locked(home):
        assert doctor("--fix")["fixed"] == []
    assert leftover.exists()


def test_a_socket_folder_that_is_open_to_others_is_closed(doctor: Doctor, home: Path) -> None:
    (home / "run").mkdir(mode=0o755)
    (home / "run").chmod(0o755)
    assert state(doctor(), "socket") == "fail"
    assert state(doctor("--fix"), "socket") == "ok"


def test_a_damaged_chain_and_a_wrong_setting_are_named(doctor: Doctor, home: Path) -> None:
    (home / "config.toml").write_text("prot = 4001\n")
    raw = (home / "chain" / "000000.entries").read_bytes()
    (home / "chain" / "000000.entries").write_bytes(raw[:-20] + bytes(20))
    found = doctor()
    assert (state(found, "config"), state(found, "identity")) == ("fail", "fail")
    assert "prot" in next(check["said"] for check in found["checks"] if check["name"] == "config")


class Ahead(SystemClock):
    """A clock that is months ahead of ours."""

    def now_unix_s(self) -> float:
        return super().now_unix_s() + 10_000_000


def test_a_clock_that_is_behind_what_two_keys_signed_is_found(doctor: Doctor, home: Path, tmp_path: Path) -> None:
    Membership.found(RealDisk(tmp_path / "other"), SystemRandomness(), Ahead(), name="x", tier="cloud",
                     root=draw_root(SystemRandomness()))
    assert state(doctor(folder=tmp_path / "other"), "clock") == "fail"
    membership = Membership.load(RealDisk(home), SystemRandomness(), SystemClock())
    membership.take_in([make_device_add(
        membership.chain(), membership.keys, name="late", public=bytes(31) + b"1", box_public=bytes(31) + b"2",
        role="keeper", tier="pocket", time_s=int(Ahead().now_unix_s()))])
    assert state(doctor(), "clock") == "skip", "one key alone may have had a wrong clock"


def test_logged_errors_are_counted(doctor: Doctor, home: Path) -> None:
    (home / "log").mkdir()
    (home / "log" / "errors.log").write_text("Traceback (most recent call last)\nRuntimeError: x\n" * 2)
    assert "2 unexpected errors" in next(
        check["said"] for check in doctor()["checks"] if check["name"] == "errors")


# ---- the network -----------------------------------------------------------------------------------------------------


def test_our_own_multicast_is_heard_on_loopback_and_a_foreign_address_is_a_problem() -> None:
    assert probe.heard_problem("127.0.0.1", 0) == ""
    assert probe.heard_problem("192.0.2.250", 0) != ""


def test_a_busy_port_is_told_from_a_free_one() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert "another program uses it" in probe.bind_problem(port, ["127.0.0.1"])
        assert probe.reach([f"/ip4/127.0.0.1/tcp/{port}"]) == ""
        relayed = f"/ip4/127.0.0.1/tcp/{port}/p2p/12D3KooWx/p2p-circuit"
        assert probe.reach([relayed]) == "no address is known", "that the relay is there says nothing of the device"
    assert probe.bind_problem(port, ["127.0.0.1"]) == ""
    assert "no agent listens there" in probe.reach([f"/ip4/127.0.0.1/tcp/{port}"])
    assert "no address 192.0.2.250" in probe.bind_problem(port, ["192.0.2.250"])


def test_a_sibling_that_can_not_be_reached_and_a_busy_port_are_found(
        home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = RealDisk(home)
    membership = Membership.load(disk, SystemRandomness(), SystemClock())
    membership.take_in([make_device_add(
        membership.chain(), membership.keys, name="away-pi", public=bytes(31) + b"1", box_public=bytes(31) + b"2",
        role="keeper", tier="pocket", time_s=1)])
    with socket.socket() as busy, socket.socket() as closed:
        for one in (busy, closed):
            one.bind(("127.0.0.1", 0))
        busy.listen()
        (home / "config.toml").write_text(f'listen = ["127.0.0.1"]\ninterface = "lo"\nport = {busy.getsockname()[1]}\n')
        AddressBook(disk).keep(bytes(31) + b"1", f"/ip4/127.0.0.1/tcp/{closed.getsockname()[1]}", ())
        capsys.readouterr()
        assert root.main(["--home", str(home), "--json", "doctor"]) == 1
    found = json.loads(capsys.readouterr().out)
    said = {check["name"]: check["said"] for check in found["checks"]}
    assert (state(found, "port"), state(found, "siblings"), state(found, "multicast")) == ("fail", "warn", "ok")
    assert "another program uses it" in said["port"]
    assert "away-pi: 127.0.0.1" in said["siblings"]
    assert "no agent listens there" in said["siblings"]


# ---- the bundle ------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent(home: Path) -> Iterator[Callable[..., str]]:
    """The home's agent, running, with a file in the vault and an open invitation; runs command lines beside it."""
    (home / "config.toml").write_text('name = "kitchen-pi"\nlisten = ["127.0.0.1"]\ninterface = "lo"\n')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def line(*arguments: str) -> str:
        done = subprocess.run([sys.executable, "-m", "hinet_node", "--home", str(home), *arguments],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    line("up")
    try:
        yield line
    finally:
        holder = homes.lock_holder(home)
        if holder:
            os.kill(holder, signal.SIGKILL)


def test_beside_a_running_agent_nothing_fails(agent: Callable[..., str], home: Path) -> None:
    found = json.loads(agent("doctor", "--json"))
    for name in ("agent", "socket", "port", "multicast", "interfaces", "duplicate", "warnings", "siblings"):
        assert state(found, name) == "ok", found
    stale = agent("doctor", "--json", "--fix", "--no-network")
    assert json.loads(stale)["fixed"] == []
    assert homes.socket_path(home).exists(), "the agent's socket is nobody's to take away"


def forms(secret: bytes) -> set[bytes]:
    """Raw, hex in both cases, base64 and base64url, as a bundle could hold it."""
    return {secret, secret.hex().encode(), secret.hex().upper().encode(), base64.b64encode(secret).rstrip(b"="),
            base64.urlsafe_b64encode(secret).rstrip(b"=")}


def secrets_of(home: Path, words: Path) -> set[bytes]:
    membership = Membership.load(RealDisk(home), SystemRandomness(), SystemClock())
    raws = [*membership.epoch_keys().values(), membership.keys.sign_seed, (home / "device.key").read_bytes()]
    kept = [home / "device.key", *(home / "invitations").glob("*")]
    assert len(kept) == 2, "an invitation is open"
    for raw in (path.read_bytes() for path in kept):  # the secrets in them, wherever they begin
        raws += [raw[at:at + 16] for at in range(len(raw) - 15)]
    found = set().union(*(forms(raw) for raw in raws))
    papers = [path.read_text().split() for path in (words, words.with_name(f"{words.name}.spare"))]
    return found | {" ".join(spoken[at:at + 2]).encode() for spoken in papers for at in range(len(spoken) - 1)}


def contents(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle) as archive:
        return {entry.name: stream.read() for entry in archive if (stream := archive.extractfile(entry)) is not None}


def test_a_bundle_holds_no_secret_no_file_name_and_no_name_of_a_device(
        agent: Callable[..., str], home: Path, tmp_path: Path) -> None:
    diary = tmp_path / "My secret diary.md"
    diary.write_text("Bello is a beagle.")
    agent("vault", "add", str(diary))
    with Client(home) as client:
        ticket: str = client.call("invite", {"carrier": "ticket", "accept": True, "wait": False})["ticket"]
    with (home / "log" / "agent.log").open("a") as log:  # what must never be written there, and could be by a bug
        log.write(f"2026-01-01T00:00:00+0000 4711-zoo-zone-zero {ticket} of 'My secret diary.md'\n"
                  "2026-01-01T00:00:00+0000 the call vault.get failed unexpectedly:\n"
                  "2026-01-01T00:00:00+0000 Traceback (most recent call last):\n"
                  '2026-01-01T00:00:00+0000   File "/home/anna/x/hinet_node/vault/core.py", line 7, in get\n'
                  "2026-01-01T00:00:00+0000 ValueError: /home/anna/My secret diary.md holds hunter2\n"
                  "2026-01-01T00:00:00+0000 kitchen-pi is at /ip4/8.8.8.8/tcp/4001 and /ip4/192.168.1.5/tcp/4001\n")
    (home / "log" / "errors.log").write_text("Traceback (most recent call last):\nRuntimeError: hunter2\n")
    bundle = tmp_path / "report.tar.gz"
    agent("doctor", "--no-network", "--bundle", str(bundle))
    assert bundle.stat().st_mode & 0o777 == 0o600
    parts = contents(bundle)
    assert {name.rpartition("/")[2] for name in parts} == {
        "README", "findings.json", "facts.json", "status.json", "versions.json", "agent.log", "errors.log"}
    everything = b"\0".join(parts.values())
    hidden = {b"diary", b"kitchen", b"hunter2", b"4711-zoo", ticket.encode(), b"anna", b"8.8.8.8", str(home).encode()}
    for secret in hidden | secrets_of(home, tmp_path / "words"):
        assert secret not in everything, secret
    log = parts["hinet-doctor/agent.log"].decode()
    for kept in ("device-1 is ready", "hinet_node/vault/core.py:7 in get", "ValueError", "192.168.1.5",
                 "<public address>"):
        assert kept in log
    assert json.loads(parts["hinet-doctor/status.json"])["devices"][0]["name"] == "device-1"


def test_names_stay_when_they_are_asked_for_and_a_file_is_never_written_over(doctor: Doctor, tmp_path: Path) -> None:
    bundle = tmp_path / "report.tar.gz"
    doctor("--bundle", str(bundle), "--with-names")
    assert b"kitchen-pi" in contents(bundle)["hinet-doctor/status.json"]
    before = bundle.read_bytes()
    assert root.main(["--home", str(tmp_path / "home"), "doctor", "--no-network", "--bundle", str(bundle)]) == 6
    assert bundle.read_bytes() == before
