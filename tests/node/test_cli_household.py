"""A household of real processes on loopback, driven by the command line only, with the mistakes that people make."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HINET_DEBUG": "", "PYTHONUNBUFFERED": "1"}
PATIENCE_S = 120.0
"""For a busy machine; nothing here takes seconds on a quiet one."""


class House:
    """Homes by name under one folder, and the processes that run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents: dict[str, subprocess.Popen[str]] = {}
        self.addresses: dict[str, list[str]] = {}
        self.waiting: list[subprocess.Popen[str]] = []

    def home(self, name: str) -> Path:
        return self.folder / name

    def start(self, name: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-m", "hinet_node", "--home", str(self.home(name)), *arguments],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, **options)

    def line(self, name: str, *arguments: str) -> tuple[int, str, str]:
        process = self.start(name, *arguments, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def json(self, name: str, *arguments: str) -> dict[str, Any]:
        code, out, err = self.line(name, *arguments, "--json")
        assert code == 0, out + err
        found: dict[str, Any] = json.loads(out)
        return found

    def run(self, name: str, *arguments: str) -> None:
        log = (self.folder / f"{name}.log").open("a")
        with log:
            process = self.start(name, "run", "--listen", "127.0.0.1", "--json", *arguments, stderr=log)
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, (self.folder / f"{name}.log").read_text()
        self.agents[name], self.addresses[name] = process, json.loads(ready)["addresses"]

    def invite(self, name: str, *arguments: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """Start `invite` and return it with what it shows first."""
        process = self.start(name, "invite", "--json", *arguments, stderr=subprocess.PIPE)
        self.waiting.append(process)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    def stop(self, name: str, number: int = signal.SIGTERM) -> int:
        process = self.agents.pop(name)
        process.send_signal(number)
        code = process.wait(timeout=PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, "it did not happen"
            time.sleep(0.3)

    def close(self) -> None:
        for process in (*self.agents.values(), *self.waiting):
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """first (admin), second (member, joined by code through discovery), store (keeper, joined by ticket): running."""
    house = House(tmp_path_factory.mktemp("house"))
    try:
        code, _, err = house.line("first", "init", "--name", "first", "--tier", "cloud", "--words-file",
                                  str(house.folder / "words"))
        assert code == 0, err
        house.run("first")
        inviting, shown = house.invite("first", "--yes")
        house.json("second", "join", shown["code"], "--name", "second", "--tier", "laptop")
        out, err = inviting.communicate(timeout=PATIENCE_S)
        assert inviting.returncode == 0, err
        assert json.loads(out)["device"]["name"] == "second"
        house.run("second")
        inviting, shown = house.invite("first", "--yes", "--ticket", "--role", "keeper")
        joined = house.json("store", "join", shown["ticket"], "--name", "store", "--tier", "cloud")
        assert [device["name"] for device in joined["devices"]] == ["first", "second", "store"]
        assert inviting.wait(timeout=PATIENCE_S) == 0
        house.run("store")
        yield house
    finally:
        house.close()


def one_clear_error(result: tuple[int, str, str], exit_code: int, *said: str) -> None:
    """The last two lines on stderr are `error:` and `next:`; no traceback anywhere."""
    code, _, err = result
    assert code == exit_code, err
    *_, error, following = err.rstrip("\n").split("\n")
    assert error.startswith("error: ")
    assert following.startswith("next: ")
    assert "Traceback" not in err
    for text in said:
        assert text in error + following, err


def names(house: House, who: str) -> list[str]:
    return [item["name"] for item in house.json(who, "vault", "ls", "-R")["items"]]


def states(house: House, who: str) -> dict[str, str]:
    return {device["name"]: device["state"] for device in house.json(who, "status")["devices"]}


def test_notes_that_one_device_adds_come_to_the_others(house: House) -> None:
    notes = house.folder / "notes"
    notes.mkdir()
    (notes / "dog.md").write_text("Bello is a beagle.")
    added = house.json("second", "vault", "add", str(notes))
    assert (added["schema"], added["files"]) == ("hinet.vault-add/1", 1)
    house.until(lambda: names(house, "first") == ["notes/dog.md"])
    copy = house.folder / "copy.md"
    assert house.line("first", "vault", "get", "notes/dog.md", "--out", str(copy))[0] == 0
    assert copy.read_text() == "Bello is a beagle."
    assert house.line("first", "vault", "get", "notes/dog.md", "--out", "-")[1] == "Bello is a beagle."
    packs = house.json("first", "vault", "status")["packs"]
    house.until(lambda: house.json("store", "vault", "status")["packs"] == packs)
    one_clear_error(house.line("store", "vault", "get", "notes/dog.md", "--out", "-"), 4, "keeper")
    assert house.json("store", "vault", "verify")["packs"] == packs


def test_status_and_devices_show_the_household(house: House) -> None:
    house.until(lambda: states(house, "first") == {"first": "this", "second": "connected", "store": "connected"})
    house.until(lambda: "every device in step" in house.line("first", "status")[1])
    code, out, err = house.line("first", "status")
    assert (code, err) == (0, "")
    for text in ("first", "admin", "keeper", "running", "127.0.0.1:"):
        assert text in out
    shown = house.json("first", "devices", "show", "second")
    assert (shown["role"], shown["tier"], shown["state"]) == ("member", "laptop", "connected")


def test_status_answers_fast(house: House) -> None:
    def cpu_s(arguments: list[str]) -> float:
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    line = ["-m", "hinet_node", "--home", str(house.home("first")), "status"]
    assert min(cpu_s(line) for _ in range(5)) < min(cpu_s(["-c", "pass"]) for _ in range(5)) + 0.2


def test_mistakes_with_codes_are_told_apart(house: House) -> None:
    address = ["--address", house.addresses["first"][0]]
    expiring, soon = house.invite("first", "--yes", "--expires", "10s")
    inviting, shown = house.invite("first", "--yes")
    number, first, *rest = shown["code"].split("-")
    wrong = "-".join([number, "zoo" if first != "zoo" else "zone", *rest])
    one_clear_error(house.line("new", "join", wrong, "--name", "new", *address), 4, "do not match", "2 tries")
    assert not (house.home("new") / "chain").exists()
    joined = house.json("new", "join", shown["code"], "--name", "new", *address)
    assert joined["device"]["name"] == "new"
    assert inviting.wait(timeout=PATIENCE_S) == 0
    one_clear_error(house.line("late", "join", shown["code"], "--name", "late", *address), 6, "used already",
                    "hinet-node invite")
    one_clear_error(house.line("new", "join", shown["code"], *address), 6, "identity already")
    out, _ = expiring.communicate(timeout=PATIENCE_S)
    assert expiring.returncode == 4
    assert json.loads(out)["code"] == "E_INVITATION_EXPIRED"
    one_clear_error(house.line("late", "join", soon["code"], "--name", "late", *address), 4, "expired")
    one_clear_error(house.line("late", "join", "9999-zoo-zoo-zoo", "--timeout", "2", "--name", "late"), 5, "9999",
                    "hinet-node invite")
    one_clear_error(house.line("late", "join", "1-zoo-zoo-zoo", "--address", "127.0.0.1:1", "--timeout", "3"), 5,
                    "could not be reached", "--address")


def test_a_member_may_not_invite_or_revoke(house: House) -> None:
    one_clear_error(house.line("second", "invite", "--yes"), 4, "admin", "first")
    one_clear_error(house.line("second", "revoke", "store", "--yes"), 4, "admin", "first")


def test_a_busy_port_and_a_running_agent_are_named(house: House) -> None:
    port = house.addresses["first"][0].rpartition("/")[2]
    house.stop("store")
    one_clear_error(house.line("store", "run", "--listen", "127.0.0.1", "--port", port), 5, port, "--port")
    one_clear_error(house.line("first", "run"), 6, str(house.agents["first"].pid), "kill")
    house.run("store")


def test_a_killed_agent_starts_again_with_everything(house: House) -> None:
    house.stop("first", signal.SIGKILL)
    one_clear_error(house.line("first", "invite", "--yes"), 9, "nothing listens", "run")
    assert states(house, "first")["first"] == "this"
    house.run("first")
    house.until(lambda: states(house, "first")["second"] == "connected")
    assert names(house, "first") == ["notes/dog.md"]


def test_a_corrupted_pack_is_found_set_aside_and_fetched_again(house: House) -> None:
    assert house.stop("second") == 0
    pack = next(path for path in (house.home("second") / "vault" / "packs").rglob("*") if path.is_file())
    raw = bytearray(pack.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    pack.write_bytes(bytes(raw))
    one_clear_error(house.line("second", "vault", "verify"), 7, "not whole", "hinet-node vault repair")
    house.run("second")
    house.until(lambda: house.line("second", "vault", "verify")[0] == 0)
    assert house.line("second", "vault", "get", "notes/dog.md", "--out", "-")[1] == "Bello is a beagle."


def test_revoking_says_what_it_does_and_who_knows(house: House) -> None:
    house.until(lambda: states(house, "first").get("store") == states(house, "first").get("second") == "connected")
    one_clear_error(house.line("first", "revoke", "store"), 2, "--yes")
    plan = house.line("first", "revoke", "store", "--dry-run")
    assert plan[0] == 0
    assert "It keeps what it already read" in plan[1]
    done = house.json("first", "revoke", "store", "--yes", "--reason", "sold")
    assert done["done"]
    assert "second" in done["told"]
    house.until(lambda: states(house, "second")["store"] == "revoked")
    house.until(lambda: "connected" not in states(house, "store").values())
    one_clear_error(house.line("first", "revoke", "first", "--yes"), 4, "itself")


def test_an_agent_stops_in_order_and_leaves_no_socket(house: House) -> None:
    assert house.stop("store") == 0
    assert not (house.home("store") / "run" / "agent.sock").exists()
    assert "has stopped" in (house.folder / "store.log").read_text()
    log = (house.home("store") / "log" / "agent.log").read_text()
    assert "is ready" in log


def test_the_words_work_beside_running_agents_and_bring_the_household_back_from_one(house: House) -> None:
    """The root is replaced through the running agent, which hears no word of it; then a new machine asks a member."""
    words = house.folder / "words.spare"
    rotated = house.json("first", "identity", "rotate", "--words-file", str(words), "--new-spare-file",
                         str(house.folder / "spare-2"))
    assert (rotated["by_agent"], rotated["epoch_made"]) == (True, True)
    house.until(lambda: house.json("second", "identity", "show")["root_fingerprint"] == rotated["root_fingerprint"])
    secret = words.read_text().split()
    for name in ("first", "second"):
        assert " ".join(secret[:2]) not in (house.folder / f"{name}.log").read_text()
    one_clear_error(house.line("first", "init", "--recover", "--words-file", str(words)), 6, "kill")
    house.stop("first")
    back = house.json("back", "init", "--recover", "--words-file", str(words), "--name", "back", "--tier", "cloud",
                      "--address", house.addresses["second"][0])
    assert (back["device"]["role"], back["epochs_closed"]) == ("admin", 0)
    gone = house.json("back", "revoke", "first", "--yes", "--words-file", str(words), "--reason", "burnt")
    assert gone["done"]
    house.run("back")
    house.until(lambda: states(house, "second").get("back") == "connected")
    house.until(lambda: names(house, "back") == ["notes/dog.md"])
    assert states(house, "second")["first"] == "revoked"


def test_a_copied_home_gets_a_key_of_its_own_by_a_code_and_keeps_its_vault(house: House) -> None:
    shutil.copytree(house.home("second"), house.home("twin"), ignore=shutil.ignore_patterns("run", "log", "lock"))
    key = (house.home("twin") / "device.key").read_bytes()
    one_clear_error(house.line("twin", "init", "--rekey"), 4, "second is a member", "--rekey CODE")
    _, shown = house.invite("back", "--yes")
    found = house.json("twin", "init", "--rekey", shown["code"], "--address", house.addresses["back"][0])
    assert (found["device"]["name"], found["device"]["role"]) == ("second-2", "member")
    assert (house.home("twin") / "device.key").read_bytes() != key
    assert not (house.home("twin") / "device.key.next").exists()
    house.run("twin")
    house.until(lambda: states(house, "back").get("second-2") == "connected")
    assert states(house, "back")["second"] == "connected"
    assert house.line("twin", "vault", "get", "notes/dog.md", "--out", "-")[1] == "Bello is a beagle."
