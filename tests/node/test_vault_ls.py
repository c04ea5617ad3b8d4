"""`vault ls`: levels and sums, odd names shown safely and given byte for byte, and long lists page by page."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hinet_node.cli import context, root
from hinet_node.local import vault_ls_verbs

Run = Callable[..., tuple[int, str, str]]
ODD = b"odd\xff\n\x1b[31m"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("HINET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vault_ls_verbs, "LIST_MAX", 3)

    def line(*arguments: str) -> tuple[int, str, str]:
        code = root.main(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    assert line("init", "--name", "first", "--words-file", str(tmp_path / "words"))[0] == 0
    for name in (b"a/1", b"a/2", b"a/b/3", b"a-b", b"a0", b"z/" + ODD, b"top"):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/in/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    for name in ("a", "a-b", "a0", "z", "top"):
        assert line("vault", "add", f"in/{name}")[0] == 0
    return line


def test_one_level_with_its_folders_or_every_file(run: Run) -> None:
    assert run("vault", "ls")[1] == "a-b\na/\na0\ntop\nz/\n"
    for folder in ("a", "a/"):
        assert run("vault", "ls", folder)[1] == "a/1\na/2\na/b/\n"
    assert run("vault", "ls", "-R", "a")[1] == "a/1\na/2\na/b/3\n"
    assert run("vault", "ls", "a/1")[1] == "a/1\n"
    assert run("vault", "ls", "-R")[1].count("\n") == 7
    code, _, err = run("vault", "ls", "to")
    assert code == 2
    assert "'to'" in err


def test_long_shows_sizes_and_sums(run: Run) -> None:
    lines = run("vault", "ls", "-l")[1].splitlines()
    assert lines[1].split()[:2] == ["15", "B"]
    assert lines[1].endswith("3 files         a/")
    assert lines[3].split()[:2] == ["5", "B"]
    assert lines[3].endswith("first           top")


def test_an_odd_name_is_safe_on_a_terminal_and_exact_for_scripts(run: Run) -> None:
    assert run("vault", "ls", "z")[1].count("\n") == 1
    assert "\x1b" not in run("vault", "ls", "z")[1]
    done = subprocess.run([sys.executable, "-m", "hinet_node", "--home", context.home_path(), "vault", "ls", "-R", "-0",
                           "z"], capture_output=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout == b"z/" + ODD + b"\0"
    done = subprocess.run([sys.executable, "-m", "hinet_node", "--home", context.home_path(), "--json", "vault", "ls",
                           "z"], capture_output=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    (item,) = json.loads(done.stdout)["items"]
    assert item["name"].encode("utf-8", "surrogateescape") == b"z/" + ODD


def test_json_is_one_object_over_all_pages(run: Run) -> None:
    found = json.loads(run("--json", "vault", "ls", "-R")[1])
    assert found["schema"] == "hinet.vault-ls/1"
    assert [item["name"] for item in found["items"][:4]] == ["a-b", "a/1", "a/2", "a/b/3"]
    assert len(found["items"]) == 7
    found = json.loads(run("--json", "vault", "ls")[1])
    assert [(item["kind"], item["name"]) for item in found["items"]] == [
        ("file", "a-b"), ("folder", "a/"), ("file", "a0"), ("file", "top"), ("folder", "z/")]
    assert found["items"][1]["files"] == 3
    assert json.loads(run("--json", "vault", "ls", "--all")[1])["items"]
