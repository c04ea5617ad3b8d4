"""Writing files back: as they were, in folders of any depth, whole or not at all, however many there are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from blake3 import blake3

from hinet_node.errors import IntegrityError
from hinet_node.vault.files import write_file
from hinet_node.vault.outgoing import KEEP, write_out
from hinet_node.vault.progress import Counter
from hinet_node.vault.reading_ahead import ahead
from hinet_protocol.trees import Version
from hinet_simnet.disk import MemoryDisk

BLOCK = 65_536
NOW_NS = 1_700_000_000_123_456_789


def nothing(count: int) -> None:
    """Nobody counts."""


def descriptors() -> int:
    """How many are open (Linux; elsewhere always as many)."""
    listed = Path("/proc/self/fd")
    return len(list(listed.iterdir())) if listed.is_dir() else 0


def test_mode_and_time_come_back_and_nothing_else_of_the_mode(world: Any, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    source.mkdir()
    for name, mode in (("script", 0o4755), ("secret", 0o600), ("open", 0o666)):
        (source / name).write_bytes(name.encode())
        (source / name).chmod(mode)
        os.utime(source / name, ns=(NOW_NS, NOW_NS))
    before_1970 = source / "old"
    before_1970.write_bytes(b"")
    os.utime(before_1970, ns=(-5_000_000_000, -5_000_000_000))

    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.add_files([source])
        await node.vault.restore(b"tree/", tmp_path / "out")
        await node.vault.get_to(b"tree/script", tmp_path / "script")
    umask = os.umask(0o022)
    try:
        trio.run(main)
    finally:
        os.umask(umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out" / "tree").iterdir()}
    assert modes == {"script": 0o755, "secret": 0o644, "open": 0o644, "old": 0o644}
    assert stat.S_IMODE((tmp_path / "script").stat().st_mode) == 0o755
    for name in ("script", "secret", "open"):
        assert (tmp_path / "out" / "tree" / name).stat().st_mtime_ns == NOW_NS
    assert (tmp_path / "out" / "tree" / "old").stat().st_mtime_ns == -5_000_000_000


@pytest.mark.parametrize("pieces", [
    [bytes(4 * BLOCK)], [b"a" + bytes(4 * BLOCK)], [bytes(2 * BLOCK) + b"a" * 10], [b"a" * BLOCK + bytes(3 * BLOCK)],
    [bytes(BLOCK), b"x", bytes(BLOCK)], [b"a" * BLOCK, bytes(BLOCK), bytes(BLOCK), b"end"], [bytes(BLOCK - 1)], [b""],
    [bytes(BLOCK) + b"b" * BLOCK + bytes(BLOCK) + b"c" * 7], [bytes(2 * BLOCK), bytes(2 * BLOCK)],
], ids=range(10))
def test_holes_are_written_back_and_the_bytes_are_the_same(tmp_path: Path, pieces: list[bytes]) -> None:
    write_file(tmp_path / "out", pieces, nothing)
    assert (tmp_path / "out").read_bytes() == b"".join(pieces)


def test_a_long_hole_takes_no_room(tmp_path: Path) -> None:
    write_file(tmp_path / "out", [bytes(1 << 20)] * 64 + [b"end"], nothing)
    found = (tmp_path / "out").stat()
    assert found.st_size == (64 << 20) + 3
    assert found.st_blocks * 512 <= 1 << 20


def test_very_many_files_and_very_deep_folders(tmp_path: Path) -> None:
    deep = tuple(b"d" * 60 for _ in range(80))  # longer than any path that the system takes
    names = {b"f%d/%d" % (number // 20, number): b"%d" % number for number in range(1_100)}
    names[b"/".join((*deep, b"last"))] = b"deep"
    names[b"/".join((*deep[:40], b"half"))] = b"half"
    rows = {name: Version(b"d" * 32, 1, (), (), 0, 0, False, len(content), blake3(content).digest(), False, content)
            for name, content in names.items()}
    before = descriptors()
    report = write_out(rows, lambda version: [version.chunks], tmp_path / "out", KEEP, Counter(b"", 0, 0, None))
    assert report.files == 1_102
    assert descriptors() == before
    assert sum(1 for _ in (tmp_path / "out").glob("f*/*")) == 1_100
    assert (tmp_path / "out" / "f0" / "7").read_bytes() == b"7"
    at = os.open(tmp_path / "out", os.O_RDONLY)
    for part in deep:
        inner = os.open(part, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    last = os.open(b"last", os.O_RDONLY, dir_fd=at)
    assert os.read(last, 10) == b"deep"
    os.close(at)
    os.close(last)


def test_nothing_appears_before_all_of_a_file_was_seen_to_be_right(world: Any, tmp_path: Path) -> None:
    """The last chunk is opened, and the whole digest compared, before a file has its name."""
    seen: list[list[str]] = []

    async def main() -> None:
        node = await world.node("laptop")
        await node.vault.put_many({b"a/1": os.urandom(20_000), b"a/2": os.urandom(20_000)})
        await node.vault.restore(b"", tmp_path / "out", on_progress=lambda done: seen.append(
            [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]))
    trio.run(main)
    assert not any("1" in names for names in seen[:-1])
    assert (tmp_path / "out" / "a" / "1").stat().st_size == 20_000


def test_pieces_made_ahead_come_in_order_and_their_error_too() -> None:
    def made() -> Iterator[bytes]:
        yield from (b"%d" % number for number in range(20))
        raise IntegrityError("damaged", next_step="wait")

    found: list[bytes] = []
    with pytest.raises(IntegrityError):
        found += ahead(MemoryDisk(), made())
    pieces = ahead(MemoryDisk(), (b"%d" % number for number in range(20)))
    assert list(pieces) == [b"%d" % number for number in range(20)]
