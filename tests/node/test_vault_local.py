"""Vault work without an agent, under the home's lock: the same verbs, and Ctrl-C that leaves nothing half done."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hinet_node import home
from hinet_node.cli import context, root, vault_local
from hinet_node.errors import ConflictError, NodeError
from hinet_node.vault import Vault

Run = Callable[..., tuple[int, str, str]]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("HINET_HOME", str(tmp_path / "home"))

    def line(*arguments: str) -> tuple[int, str, str]:
        code = root.main(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    assert line("init", "--name", "first", "--words-file", str(tmp_path / "words"))[0] == 0
    return line


def test_files_are_added_listed_taken_out_and_verified_without_an_agent(run: Run, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "dog.md").write_text("Bello is a beagle.")
    code, out, err = run("vault", "add", str(notes))
    assert (code, out) == (0, "1 file (18 B) in the vault.\n")
    assert "hinet-node up" in err
    assert run("vault", "ls", "-R")[1] == "notes/dog.md\n"
    assert run("vault", "get", "notes/dog.md", "--out", str(tmp_path / "out.md"))[0] == 0
    assert (tmp_path / "out.md").read_text() == "Bello is a beagle."
    assert "All is whole." in run("vault", "verify", "--deep")[1]
    assert "1 file (18 B) in 1 pack" in run("vault", "status")[1]


def test_a_home_that_another_command_uses_is_refused_and_the_process_named(run: Run) -> None:
    with home.locked(context.home_path()):
        code, _, err = run("vault", "ls")
    assert code == 6
    assert str(os.getpid()) in err


def test_work_of_ones_own_gets_the_vault_and_what_it_raises_comes_out(run: Run) -> None:
    async def count(vault: Vault, report: vault_local.Report) -> int:
        report({"step": 1, "total": 2})
        await vault.put(b"a", b"1")
        return len(await vault.list())

    assert vault_local.run(count) == 1

    async def fail(vault: Vault, report: vault_local.Report) -> None:
        raise NodeError("it was not to be")

    with pytest.raises(NodeError, match="not to be"):
        vault_local.run(fail)
    with home.locked(context.home_path()), pytest.raises(ConflictError):
        vault_local.run(count)


def test_ctrl_c_ends_an_add_and_takes_back_what_it_wrote(run: Run, tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        for _ in range(64):
            file.write(os.urandom(1 << 20))
    started = threading.Event()

    async def add(vault: Vault, report: vault_local.Report) -> Any:
        def slow(done: Any) -> None:
            started.set()
            time.sleep(0.02)
            report({"step": done.bytes_done, "total": 0})
        return await vault.put(b"big", big, on_progress=slow)

    def press() -> None:
        started.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        vault_local.run(add)
    packs = Path(context.home_path(), "vault", "packs")
    assert [path for path in packs.rglob("*") if path.is_file()] == []
    assert run("vault", "ls", "-R")[1] == ""


def test_an_agent_that_is_just_starting_is_waited_for(run: Run) -> None:
    process = subprocess.Popen([sys.executable, "-m", "hinet_node", "run", "--listen", "127.0.0.1"],
                               env={**ENVIRONMENT, "HINET_HOME": context.home_path()}, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        while home.lock_holder(context.home_path()) is None:
            assert process.poll() is None
            time.sleep(0.01)
        assert run("vault", "ls")[0] == 0
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
