"""`vault rm`, `mv`, `history`, `restore`, `conflicts` and `accept-older` as typed, without an agent."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hinet_node.cli import context, moments, root, vault_local
from hinet_node.errors import UsageError
from hinet_node.vault import Vault

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A home with the files notes/dog.md (twice changed) and notes/cat.md."""
    monkeypatch.setenv("HINET_HOME", str(tmp_path / "home"))

    def line(*arguments: str) -> tuple[int, str, str]:
        code = root.main(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    assert line("init", "--name", "first", "--words-file", str(tmp_path / "words"))[0] == 0

    async def fill(vault: Vault, report: Any) -> None:
        await vault.put_many({b"notes/dog.md": b"1", b"notes/cat.md": b"cat"})
        await vault.put(b"notes/dog.md", b"22")
        await vault.put(b"notes/dog.md", b"333")

    vault_local.run(fill)
    return line


def data(run: Run, *arguments: str) -> Any:
    code, out, err = run("--json", *arguments)
    assert code == 0, err
    return json.loads(out)


def test_an_older_version_is_found_and_put_back_by_the_line_that_is_shown(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("vault", "history", "notes/dog.md")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()[:3]] == ["(now)", "changed", "added"]
    shown = re.search(r"hinet-node (.*--version [0-9a-f]{8})$", out, re.M)
    assert shown is not None
    assert run(*shown[1].split()) == (0, "1 file (2 B) put back: notes/dog.md\n", "")
    assert run("vault", "get", "notes/dog.md", "--out", "-")[1] == "22"
    first = data(run, "vault", "history", "notes/dog.md")["versions"][-1]
    assert run("vault", "restore", "notes/dog.md", "--version", first["id"], "--to", str(tmp_path / "old"))[0] == 0
    assert (tmp_path / "old").read_text() == "1"
    assert run("vault", "restore", "notes/dog.md", "--version", first["id"], "--to", str(tmp_path / "old"))[0] == 6


def test_a_removed_folder_is_in_the_list_of_changes_and_comes_back(run: Run) -> None:
    code, _, err = run("vault", "rm", "notes")
    assert code == 2
    assert "the folder notes/ with 2 files" in err
    assert "vault rm --yes notes" in err
    assert run("vault", "ls", "-R")[1] == "notes/cat.md\nnotes/dog.md\n"
    gone = data(run, "vault", "rm", "--yes", "notes")
    assert (gone["schema"], gone["files"], gone["keep_days"]) == ("hinet.vault-rm/1", 2, 30)
    assert gone["restorable_until"] - time.time() > 29 * 86_400
    assert run("vault", "ls", "-R")[1] == ""
    out = run("vault", "history")[1]
    assert out.count("removed") == 2
    assert run("vault", "restore", "notes")[1].startswith("2 files (6 B) put back: notes/cat.md, notes/dog.md")
    assert run("vault", "ls", "-R")[1] == "notes/cat.md\nnotes/dog.md\n"


def test_the_last_removal_is_taken_back_and_renamed_files_do_not_come_back_with_it(run: Run) -> None:
    assert run("vault", "mv", "notes/dog.md", "notes/hound.md")[1] == "notes/dog.md is notes/hound.md now.\n"
    assert "renamed to notes/hound.md" in run("vault", "history", "notes/dog.md")[1]
    assert "renamed from notes/dog.md" in run("vault", "history", "notes/hound.md")[1]
    assert run("vault", "rm", "notes/cat.md")[0] == 0
    assert run("vault", "rm", "--yes", "notes")[0] == 0
    out = run("vault", "restore", "notes")[1]
    assert "1 file (3 B) put back: notes/hound.md" in out
    assert "1 that were removed before" in out
    assert run("vault", "ls", "-R")[1] == "notes/hound.md\n"


def test_a_folder_that_can_not_go_back_whole_is_partly_done_and_one_object_with_json(run: Run) -> None:
    async def put(vault: Vault, report: Any) -> None:
        await vault.put(b"notes/log", b"1", keep_past=False)
        await vault.put(b"notes/log", b"2", keep_past=False)
        await vault.remove([b"notes/cat.md"])

    vault_local.run(put)
    code, out, err = run("vault", "restore", "notes", "--before", "1h")
    assert (code, out) == (3, "")
    assert "1 file was left" in err
    assert "notes/log" in err
    code, out, err = run("--json", "vault", "restore", "notes", "--before", "1h")
    assert (code, json.loads(out)["left"]) == (3, ["notes/log"])


def test_nobody_is_asked_at_no_terminal_and_a_no_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("vault", "rm", "notes/dog.md", "notes/cat.md")[0] == 0, "files that are named need no --yes"
    assert run("vault", "restore", "notes")[0] == 0

    class Person:
        def __init__(self, answer: str) -> None:
            self.answer = answer

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return self.answer + "\n"

    monkeypatch.setattr(sys, "stdin", Person("n"))
    code, _, err = run("vault", "rm", "notes")
    assert (code, "notes/cat.md" in err, "[y/N]" in err) == (2, True, True)
    assert run("vault", "ls", "-R")[1].count("\n") == 2
    monkeypatch.setattr(sys, "stdin", Person("y"))
    assert run("vault", "rm", "notes")[0] == 0
    assert run("vault", "ls", "-R")[1] == ""


def test_an_edit_of_two_devices_is_listed_with_what_differs_and_settled(run: Run) -> None:
    assert run("vault", "conflicts") == (0, "No file has two versions: nothing is contested.\n", "")
    assert data(run, "vault", "conflicts") == {"schema": "hinet.vault-conflicts/1", "conflicts": []}
    code, _, err = run("vault", "conflicts", "settle", "notes/dog.md", "--keep", "mine")
    assert (code, "hinet-node vault conflicts" in err) == (2, True)

    async def contest(vault: Vault, report: Any) -> None:
        one = vault.core.view.tree[b"notes/dog.md"][0]
        other = replace(one, seen=(), size=9, digest=b"d" * 32, time=one.time + 7_300, generation=1)
        await vault.change(lambda core: core.publisher.publish(
            core.publisher.writer(), lambda seq: [(b"notes/dog.md", replace(other, counter=seq))]))

    vault_local.run(contest)
    code, out, _ = run("vault", "conflicts")
    assert code == 0
    assert out.startswith("notes/dog.md\n")
    assert "6 B longer, 2 h later" in out
    assert "first (this device)" in out
    name = next(name for name in run("vault", "ls", "-R")[1].split() if "dog.conflict-" in name)
    assert name in out
    assert "1 edit competes with another device's" in run("vault", "status")[1]
    shown = re.search(r"--keep ([0-9a-f]{8})\|", out)
    assert shown is not None
    code, _, err = run("vault", "conflicts", "settle", name, "--keep", "mine")
    assert (code, "this device wrote 2 of the versions" in err) == (2, True)
    assert data(run, "vault", "conflicts", "settle", name, "--keep", shown[1])["names"] == ["notes/dog.md"]
    assert "nothing is contested" in run("vault", "conflicts")[1]
    assert "settled" in run("vault", "history", "notes/dog.md")[1]


def test_heads_are_shown_and_a_whole_one_is_not_accepted_again(run: Run) -> None:
    (head,) = data(run, "vault", "history", "--heads")["heads"]
    assert (head["number"], head["state"]) == (3, "whole")
    assert head["head"][:12] in run("vault", "history", "--heads")[1]
    code, _, err = run("vault", "accept-older", "--head", head["head"][:12])
    assert (code, "nothing to accept" in err) == (2, True)
    assert run("vault", "accept-older", "--head", "zz")[0] == 2


def test_a_lost_pack_is_given_up_after_a_question_and_status_is_quiet_then(run: Run) -> None:
    async def big(vault: Vault, report: Any) -> None:
        await vault.put(b"big", bytes(range(256)) * 4_000)
        await vault.put(b"after", b"1")

    before = set(Path(context.home_path(), "vault", "packs").rglob("*"))
    vault_local.run(big)
    made = sorted((path for path in Path(context.home_path(), "vault", "packs").rglob("*") if path.is_file()
                   and path not in before), key=lambda path: path.stat().st_mtime_ns)
    made[0].unlink()
    status = data(run, "vault", "status")
    assert status["missing_packs"] == 1
    (head,) = data(run, "vault", "history", "--heads")["heads"]
    assert (head["state"], head["missing_packs"]) == ("lost", 1)
    code, _, err = run("vault", "accept-older", "--head", head["head"][:12])
    assert (code, "no terminal" in err) == (2, True)
    assert "1 file stays without content until added again, or removed: big" in err
    assert run("vault", "accept-older", "--head", head["head"][:12], "--yes")[0] == 0
    assert data(run, "vault", "status")["missing_packs"] == 0
    assert run("vault", "get", "after", "--out", "-")[1] == "1"
    assert run("vault", "verify", "--deep")[0] == 7
    assert run("vault", "rm", "big")[0] == 0
    assert run("vault", "verify", "--deep")[0] == 0


@pytest.mark.parametrize(("text", "after_s"), [
    ("2026-12-01", -36_000), ("2026-12-01 10:00", 0), ("2026-12-01T10:00:30", 30), ("10:00", 0), ("9:59", -60),
    ("30m", -1_800), ("2h", -7_200), ("3d ago", -259_200), ("2w", -1_209_600), ("5 min", -300)])
def test_times_are_read_as_people_type_them(text: str, after_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.mktime((2026, 12, 1, 10, 0, 0, 0, 0, -1))
    assert moments.unix_s(text, now) == int(now) + after_s


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "2026-13-01", "h", "-3d", "99999999d"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        moments.unix_s(text)
    assert "for example" in (refused.value.next_step or "")
