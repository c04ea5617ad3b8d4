"""Names and files as they are out there, through the real command line: added on one machine, replicated to another,
taken out there, and the same byte for byte."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HINET_DEBUG": "", "PYTHONUNBUFFERED": "1"}
PATIENCE_S = 120.0

NAMES = {
    "ascii letters in both cases": [b"Note", b"note", b"NOTE"],
    "an accent in both forms": ["caf\u00e9".encode(), "cafe\u0301".encode()],
    "Hangul and the Angstrom sign in both forms": ["\uac00".encode(), "\u1100\u1161".encode(), "\u212b".encode(),
                                                    "\u00c5".encode()],
    "no UTF-8": [b"\xff\xfe", b"\x80", b"caf\xe9", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"],
    "line breaks and tabs": [b"two\nlines", b"\n", b"\r\n", b"tab\there"],
    "what terminals obey": [b"\x1b[31mred\x1b[2J", b"\x07", b"\x9b1m", "\u202eexe.txt".encode(), b"\x7f\x08"],
    "what looks like an option": [b"-rf", b"--help", b"-", b"--", b"--json", b"-o"],
    "dots": [b"...", b"..a", b"a..b", b".hidden", b".gitignore", b"end."],
    "spaces": [b" ", b" lead", b"trail ", b"in  side", "\u00a0".encode(), "\u200b".encode()],
    "what another system refuses": [b"con", b"AUX.txt", b"a:b", b"back\\slash", b"*?\"<>|", b"C:", b"nul."],
    "what a shell expands": [b"~", b"$HOME", b"`id`", b"$(id)", b"{a,b}", b"*", b"!", b"#", b"%41", b"'", b'"'],
    "the vault's own looks": [b"note.conflict-1a2b3c4d-7.md", b"note.conflict-1a2b3c4d-7.md~", b".hinet-restore-1",
                              b".hinet", b"hinet-device-key-", b"device.key", b"ab.damaged", b"in-00"],
    "long ones": [b"x" * 255, "\u00e9".encode() * 127, b"." + b"y" * 250 + b".md"],
    "emoji and what joins them": ["\U0001f469\u200d\U0001f680".encode(), "\U0001f1e9\U0001f1ea".encode()],
}
"""Names that one part of a path can have. Each file holds its own name and where it is from."""

SIZES = {"empty": 0, "one byte": 1, "less than a chunk": (4 << 20) - 1, "one chunk": 4 << 20,
         "more than a chunk": (4 << 20) + 1}


class House:
    """Two homes and the agents on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents: list[subprocess.Popen[str]] = []

    def line(self, name: str, *arguments: str | bytes, **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, "-m", "hinet_node", "--home", str(self.folder / name), *arguments],
                              stdin=subprocess.DEVNULL, capture_output=True, env=ENVIRONMENT, timeout=PATIENCE_S,
                              check=False, **options)

    def json(self, name: str, *arguments: str | bytes, **options: Any) -> dict[str, Any]:
        done = self.line(name, *arguments, "--json", **options)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def run(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "hinet_node", "--home", str(self.folder / name), "run", "--listen", "127.0.0.1",
                 "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env=ENVIRONMENT)
        self.agents.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for process in self.agents:
            process.kill()
            process.communicate()


def write_at(folder: int, path: bytes, content: bytes) -> None:
    """Write a file however long its path is, step by step."""
    *above, last = path.split(b"/")
    here = os.dup(folder)
    for part in above:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=here)
        deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = deeper
    descriptor = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=here)
    os.close(here)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def read_all(folder: Path) -> dict[bytes, bytes]:
    """Path below the folder -> content, however long the paths are."""
    found: dict[bytes, bytes] = {}

    def look(here: int, path: bytes) -> None:
        for entry in os.listdir(here):
            part = os.fsencode(entry)
            kind = os.stat(part, dir_fd=here, follow_symlinks=False)
            if stat.S_ISDIR(kind.st_mode):
                deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
                waiting.append((deeper, path + part + b"/"))
            else:
                with os.fdopen(os.open(part, os.O_RDONLY, dir_fd=here), "rb") as file:
                    found[path + part] = file.read()

    waiting = [(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), b"")]
    while waiting:
        here, path = waiting.pop()
        try:
            look(here, path)
        finally:
            os.close(here)
    return found


def remove_all(folder: Path) -> None:
    """What pytest's own clean-up can't: paths that are too long for the system."""
    subprocess.run(["rm", "-rf", "--", str(folder)], check=True)


def deep(depth: int, length: int) -> bytes:
    """A path of so many folders that has so many bytes in all."""
    path = b"d/" * depth
    while length - len(path) > 255:
        path += b"e" * 200 + b"/"
    return path + b"f" * (length - len(path))


def build(zoo: Path) -> dict[bytes, bytes]:
    """The zoo on disk; path below it -> content, of what belongs into the vault."""
    zoo.mkdir()
    files: dict[bytes, bytes] = {}
    for place, group in enumerate(NAMES.values()):
        for name in group:
            if name != b".hinet-restore-1":
                files[b"%d/" % place + name + b" dir/" + b"in" if len(name) < 240 else b"%d/" % place + name] = name
            files[b"%d/" % place + name] = b"%d:" % place + name
    for name, size in SIZES.items():
        files[b"sizes/" + name.encode()] = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    # With `zoo/` before it, the longest name that the vault can keep; and 1,500 folders deep.
    files[b"long/" + deep(0, 4_096 - len(b"zoo/long/"))] = b"longest"
    files[b"deep/" + deep(1_500, 3_100)] = b"deepest"
    root = os.open(zoo, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for path, content in files.items():
            write_at(root, path, content)
    finally:
        os.close(root)
    sparse = zoo / "sizes" / "sparse"
    with sparse.open("wb") as file:
        file.seek(9 << 20)
        file.write(b"end")
    files[b"sizes/sparse"] = bytes(9 << 20) + b"end"
    return files


def put_in_the_way(zoo: Path, outside: Path) -> set[str]:
    """What must be left out: links of all kinds, and what is no file. Their paths."""
    odd = zoo / "odd"
    odd.mkdir()
    (outside / "secret").write_bytes(b"not to be followed")
    (odd / "to a file").symlink_to(outside / "secret")
    (odd / "to a folder").symlink_to(outside)
    (odd / "to itself").symlink_to(odd / "to itself")
    (odd / "up").symlink_to("..")
    (odd / "to nowhere").symlink_to("nowhere")
    os.mkfifo(odd / "pipe")
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(odd):
        made.bind("socket")
    return {str(path) for path in odd.iterdir()}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """first and second, running, in reach of each other."""
    house = House(tmp_path_factory.mktemp("zoo"))
    try:
        house.json("first", "init", "--name", "first", "--words-file", str(house.folder / "words"))
        house.run("first")
        line = [sys.executable, "-m", "hinet_node", "--home", str(house.folder / "first"), "invite", "--yes", "--json"]
        inviting = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        assert inviting.stdout is not None
        house.json("second", "join", json.loads(inviting.stdout.readline())["code"], "--name", "second")
        inviting.communicate(timeout=PATIENCE_S)
        house.run("second")
        yield house
    finally:
        house.close()
        remove_all(house.folder)


def until_in_step(house: House) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        states = [house.json(name, "vault", "status") for name in ("first", "second")]
        if states[0]["files"] == states[1]["files"] and not states[1]["missing_packs"]:
            return
        assert time.monotonic() < deadline_s, states
        time.sleep(0.3)


@pytest.fixture(scope="module")
def zoo(house: House) -> tuple[dict[bytes, bytes], dict[bytes, bytes], set[str], dict[str, Any]]:
    """What stood on the first machine, what the second one gave out; what had to be left out, and what `add` said."""
    folder, outside = house.folder / "zoo", house.folder / "outside"
    outside.mkdir()
    files = build(folder)
    odd = put_in_the_way(folder, outside)
    added = house.json("first", "vault", "add", str(folder))
    until_in_step(house)
    house.json("second", "vault", "get", "zoo", "--out", str(house.folder / "out"))
    return files, read_all(house.folder / "out" / "zoo"), odd, added


def test_every_file_comes_out_of_the_other_machine_byte_for_byte(zoo: Any) -> None:
    files, out, _, _ = zoo
    assert sorted(files.keys() - out.keys()) == []
    assert sorted(out.keys() - files.keys()) == []
    assert [path for path, content in files.items() if out[path] != content] == []


def test_links_pipes_and_sockets_are_left_out_and_named(zoo: Any) -> None:
    _, out, odd, added = zoo
    assert set(added["skipped"]) == odd
    assert not [path for path in out if path.startswith(b"odd/")]


@pytest.mark.parametrize("group", list(NAMES))
def test_a_file_is_found_by_its_own_name(house: House, zoo: Any, group: str) -> None:
    """As an argument, byte for byte, and one of its neighbours is never taken for it."""
    place = list(NAMES).index(group)
    for name in NAMES[group][:3]:
        whole = b"zoo/%d/" % place + name
        assert house.line("second", "vault", "get", "--out", "-", "--", whole).stdout == b"%d:" % place + name


def test_a_list_never_obeys_a_name(house: House, zoo: Any) -> None:
    files, *_ = zoo
    plain = house.line("second", "vault", "ls", "-R")
    assert plain.returncode == 0
    lines = plain.stdout.split(b"\n")
    assert len(lines) == len(files) + 1, "one line for each name, whatever is in it"
    assert not [line for line in lines if any(byte < 32 or byte == 127 for byte in line)]
    plain.stdout.decode("utf-8")
    items = house.json("second", "vault", "ls", "-R")["items"]
    assert {item["name"].encode("utf-8", "surrogateescape") for item in items} == {b"zoo/" + path for path in files}
