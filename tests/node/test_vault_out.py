"""`vault get`, `cat` and `export` on the command line: to folders, archives and pipes, whole and byte for byte."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hinet_node.cli import context, root

Run = Callable[..., tuple[int, str, str]]
ODD = b"notes/\xff\xfe\x1b[31m"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Command lines in a home with some files, and no agent."""
    monkeypatch.setenv("HINET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def line(*arguments: str) -> tuple[int, str, str]:
        code = root.main(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    assert line("init", "--name", "first", "--words-file", str(tmp_path / "words"))[0] == 0
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "dog.md").write_text("Bello is a beagle.")
    (notes / "run.sh").write_text("#!/bin/sh\n")
    (notes / "run.sh").chmod(0o755)
    os.utime(notes / "run.sh", ns=(0, 1_234_567_890_123_456_789))
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + ODD)).write_bytes(b"odd")
    (notes / "big").write_bytes(os.urandom(1 << 20) * 20)
    assert line("vault", "add", "notes")[0] == 0
    return line


def home_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hinet_node", "--home", context.home_path(), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_folder_comes_out_goes_on_and_never_replaces_what_is_not_ours(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("vault", "get", "notes", "--out", "copy")
    assert code == 0
    assert "4 files" in out
    assert (tmp_path / "copy/notes/big").read_bytes() == (tmp_path / "notes/big").read_bytes()
    (tmp_path / "copy/notes/dog.md").write_text("mine")
    code, out, err = run("vault", "get", "notes", "--out", "copy")
    assert code == 3
    assert "3 of them there already" in out
    assert f"kept as it is: {tmp_path}/copy/notes/dog.md" in err
    assert "--overwrite" in err
    assert run("vault", "get", "notes", "--out", "copy", "--skip")[0] == 0
    assert (tmp_path / "copy/notes/dog.md").read_text() == "mine"
    assert run("vault", "get", "notes", "--out", "copy", "--overwrite")[0] == 0
    assert (tmp_path / "copy/notes/dog.md").read_text() == "Bello is a beagle."


def test_one_file_goes_to_a_path_and_replaces_nothing_unasked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    code, _, err = run("vault", "get", "notes/dog.md", "--out", "target")
    assert code == 6
    assert "--overwrite" in err
    assert run("vault", "get", "notes/dog.md", "--out", "target", "--overwrite")[0] == 0
    assert (tmp_path / "target").read_text() == "Bello is a beagle."
    (tmp_path / "folder").mkdir()
    assert run("vault", "get", "notes/dog.md", "--out", "folder")[0] == 0
    assert (tmp_path / "folder/dog.md").exists()


def test_export_to_a_folder_is_everything_and_goes_on(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("vault", "export", "out")
    assert (code, out.split(" in ")[0]) == (0, "4 files (20.0 MiB)")
    assert Path(os.fsdecode(os.fsencode(tmp_path) + b"/out/" + ODD)).read_bytes() == b"odd"
    found = json.loads(run("vault", "export", "out", "--json")[1])
    assert (found["schema"], found["there"]) == ("hinet.vault-export/1", 4)
    code, _, err = run("vault", "export", "out2", "--under", "nothing")
    assert code == 2
    assert "nothing" in err


def test_an_archive_is_pax_with_bytes_times_and_modes_as_they_were(run: Run, tmp_path: Path) -> None:
    assert run("vault", "export", "out.tar")[0] == 0
    with tarfile.open(tmp_path / "out.tar", encoding="utf-8", errors="surrogateescape") as archive:
        entries = {os.fsencode(entry.name): entry for entry in archive}
        assert set(entries) == {b"notes/dog.md", b"notes/run.sh", b"notes/big", ODD}
        assert entries[b"notes/run.sh"].mode == 0o755
        assert entries[b"notes/run.sh"].pax_headers["mtime"] == "1234567890.123456789"
        assert archive.extractfile(entries[ODD]).read() == b"odd"  # type: ignore[union-attr]
    folder = tmp_path / "by-tar"
    folder.mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "out.tar", "-C", folder], check=True, capture_output=True)
    assert Path(os.fsdecode(os.fsencode(folder) + b"/" + ODD)).read_bytes() == b"odd", "another tar reads it alike"
    assert (folder / "notes/run.sh").stat().st_mtime_ns == 1_234_567_890_123_456_789
    code, _, err = run("vault", "export", "out.tar")
    assert code == 6
    assert "--force" in err
    assert run("vault", "export", "out.tar", "--force")[0] == 0
    assert not list(tmp_path.glob(".hinet-restore*"))


def test_archives_and_contents_go_into_pipes(run: Run, tmp_path: Path) -> None:
    done = subprocess.run(home_line("vault", "export", "-", "--under", "notes"), capture_output=True, check=True,
                          env=environment())
    with tarfile.open(fileobj=io.BytesIO(done.stdout), encoding="utf-8", errors="surrogateescape") as archive:
        assert len(archive.getnames()) == 4
    assert b"4 files" in done.stderr
    done = subprocess.run(home_line("vault", "cat", "notes/big"), capture_output=True, check=True, env=environment())
    assert done.stdout == (tmp_path / "notes/big").read_bytes()
    done = subprocess.run(home_line("vault", "get", "notes/dog.md", "--out", "-"), capture_output=True, check=True,
                          env=environment())
    assert done.stdout == b"Bello is a beagle."
    done = subprocess.run(home_line("vault", "cat", "nothing"), capture_output=True, check=False, env=environment())
    assert done.returncode == 2
    assert done.stdout == b""


def test_a_reader_that_leaves_is_no_disaster(run: Run) -> None:
    with subprocess.Popen(home_line("vault", "cat", "notes/big"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment()) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(30) in (0, 5)


def test_files_whose_packs_are_gone_are_named_and_the_others_come_out(run: Run, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/fine").write_text("fine")
    packs = set((tmp_path / "home/vault/packs").rglob("*/*"))
    assert run("vault", "add", "more")[0] == 0
    kept = set((tmp_path / "home/vault/packs").rglob("*/*")) - packs
    for pack in packs:
        pack.write_bytes(b"\0" * pack.stat().st_size)
    for target in ("out", "out.tar"):
        code, _, err = run("vault", "export", target)
        assert code == 3
        assert "not written: notes/dog.md" in err
        assert "\x1b" not in err
    assert (tmp_path / "out/more/fine").read_text() == "fine"
    with tarfile.open(tmp_path / "out.tar") as archive:
        assert archive.getnames() == ["more/fine"]
    assert kept
