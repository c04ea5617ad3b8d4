"""Odd and dangerous things to add to the vault, through the real files of a real folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hinet_node.cli import output, vault_ls_cmd
from hinet_node.errors import UsageError
from hinet_node.local.vault_verbs import find_files, text_name
from hinet_protocol.identity import DeviceKeys


def names(found: list[tuple[bytes, Path]]) -> list[bytes]:
    return [name for name, _ in found]


def test_names_of_any_bytes_are_kept_as_they_are(tmp_path: Path) -> None:
    odd = sorted([b"\xff\xfe.md", b"new\nline", b"-rf", "\U0001f600.md".encode(), b"a" * 255, b"esc\x1b[2J", b" ",
                  b"...", b"tab\t", b"$(id);`id`", "\u202egnp.md".encode(), b"\\", b"C:\\x"])
    for name in odd:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(name)
    found, skipped = find_files([tmp_path], b"")
    assert names(found) == [os.fsencode(tmp_path.name) + b"/" + name for name in odd]
    assert not skipped
    assert [path.read_bytes() for _, path in found] == odd


def test_one_name_is_one_line_on_the_terminal_and_can_not_drive_it() -> None:
    for name in ("two\nlines", "tab\there", "\x1b]0;title\x07", "\x9b2J", "\u202egnp.exe", "\r hidden", "\udcff"):
        shown = output.clean_line(name)
        assert not set(shown) & set("\n\t\r\x07\x1b\x9b\u202e")


def test_a_name_with_characters_that_can_not_be_seen_does_not_look_like_another_one() -> None:
    for name in ("an\u200bna", "anna\ufeff", "an\u2060na", "an\xadna", "anna\u2028", "\u2066anna"):
        assert output.clean(name) != name
        assert "?" in output.clean(name)


def test_links_pipes_sockets_and_loops_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "nowhere").symlink_to("missing")
    os.mkfifo(tmp_path / "pipe")
    found, skipped = find_files([tmp_path], b"")
    assert names(found) == [os.fsencode(tmp_path.name) + b"/file"]
    assert len(skipped) == 4
    # A link that the owner names is the owner's word; what it leads to is held to the same rules.
    assert names(find_files([tmp_path / "loop"], b"")[0]) == [b"loop/file"]
    with pytest.raises(UsageError):
        find_files([tmp_path / "nowhere"], b"")


def test_the_key_of_a_node_never_goes_into_the_vault(tmp_path: Path) -> None:
    """`vault add ~` would else hand this machine's private key to every other one."""
    home = tmp_path / "share" / "hinet"
    (home / "vault").mkdir(parents=True)
    (home / "device.key").write_bytes(DeviceKeys.from_entropy(bytes(64)).to_bytes())
    (home / "vault" / "pack").write_bytes(b"x")
    (tmp_path / "note.md").write_bytes(b"x")
    found, skipped = find_files([tmp_path], b"")
    assert names(found) == [os.fsencode(tmp_path.name) + b"/note.md"]
    assert skipped == [str(home)]
    for root in (home, home / "device.key"):
        with pytest.raises(UsageError):
            find_files([root], b"")
    # A file that only has this name is the owner's own.
    (home / "device.key").write_bytes(b"the spare key is under the mat")
    assert len(find_files([tmp_path], b"")[0]) == 3


@pytest.mark.parametrize("under", [b"../..", b"a/../b", ".", b"a//b", b"./a", b"a\0b", b".hinet/revisions", b".hinet"])
def test_a_file_is_not_put_where_it_could_not_be_taken_out_again(tmp_path: Path, under: bytes) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(UsageError):
        find_files([tmp_path / "file"], os.fsencode(under))


def test_folders_deeper_than_pythons_stack_are_added(tmp_path: Path) -> None:
    depth, here = 1_500, os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    try:
        found, _ = find_files([tmp_path], b"")
    finally:  # shutil.rmtree, with which pytest cleans up, is not as deep
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)
    assert len(found) == 1
    assert text_name(found[0][0]).count("/d") == depth


def test_a_time_beyond_any_calendar_is_shown_as_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    item = {"kind": "file", "name": "note", "size": 1, "device": "evil", "time": 2**63 - 1}
    vault_ls_cmd._print_long(iter([item]))
    row = capsys.readouterr().out
    assert "note" in row
    assert "?" in row
