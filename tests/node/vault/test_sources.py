"""Reading sources: files that grow, shrink, change or vanish while they are read."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from blake3 import blake3

from hinet_node.vault.packstore import pack_path
from hinet_node.vault.sources import End, Part, SourceReader
from hinet_protocol.packs import chunk_id, chunk_id_key

KEY = chunk_id_key(b"k" * 32)
CHUNK = 65_536
NOISE = random.Random(3).randbytes(4 << 20)


def read(path: Path, between: Callable[[int], None] = lambda batch: None) -> tuple[bytes, End, int]:
    """The content as it was taken in the end, how it ended, and how often it was begun again. `between` is called
    after each batch."""
    reader = SourceReader([path], KEY, CHUNK)
    taken, again, end, number = b"", 0, None, 0
    while batch := reader.batch():
        for part in batch:
            if part.again:
                taken, again = b"", again + 1
            if part.data is not None:
                assert part.chunk == chunk_id(KEY, part.data)
                taken += part.data
            end = part.end or end
        between(number)
        number += 1
    reader.close()
    assert end is not None
    assert (end.size, end.digest) == (len(taken), blake3(taken).digest())
    return taken, end, again


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, len(NOISE)])
def test_a_file_that_keeps_still_is_read_once(tmp_path: Path, size: int) -> None:
    (tmp_path / "a").write_bytes(NOISE[:size])
    taken, end, again = read(tmp_path / "a")
    assert (taken, end.changed, end.error, again) == (NOISE[:size], False, None, 0)


def test_a_file_that_changes_once_is_read_again_and_taken_as_it_is_then(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(NOISE)

    def between(batch: int) -> None:
        if batch == 1:
            with path.open("r+b") as file:
                file.write(b"other")
    taken, end, again = read(path, between)
    assert (taken, end.changed, again) == (b"other" + NOISE[5:], False, 1)


def test_a_file_that_grows_for_ever_has_an_end_and_is_said_to_have_changed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(NOISE)

    def between(batch: int) -> None:
        assert batch < 100, "it has no end"
        with path.open("ab") as file:
            file.write(NOISE[:CHUNK * 10])
    taken, end, again = read(path, between)
    assert (end.changed, again) == (True, 2)
    assert path.read_bytes()[:len(taken)] == taken
    assert len(NOISE) <= len(taken) < path.stat().st_size


def test_a_file_that_is_cut_short_is_taken_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(NOISE)

    def cut(batch: int) -> None:
        os.truncate(path, max(0, path.stat().st_size - (1 << 20)))
    taken, _, again = read(path, cut)
    assert NOISE.startswith(taken)
    assert again >= 1


def test_a_file_whose_size_says_nothing_is_said_to_have_changed() -> None:
    status = Path("/proc/self/status")
    if status.exists():
        _, end, _ = read(status)
        assert end.changed


def test_holes_are_read_as_zeros_wherever_they_are(tmp_path: Path) -> None:
    islands = (0, CHUNK * 7 + 5, CHUNK * 20 - 1, CHUNK * 40)
    for size in (CHUNK * 40 + 3, CHUNK * 64, CHUNK * 64 + 1):
        path = tmp_path / str(size)
        with path.open("wb") as file:
            file.truncate(size)
            for at in islands:
                file.seek(at)
                file.write(b"x" * min(3, size - at))
        taken, end, _ = read(path)
        assert taken == path.read_bytes()
        assert not end.changed


def test_sources_that_can_not_be_opened_end_with_their_error_and_the_next_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"here")
    os.mkfifo(tmp_path / "pipe")
    reader = SourceReader([tmp_path / "a", tmp_path / "pipe", tmp_path, tmp_path / "b"], KEY, CHUNK)
    parts: list[Part] = reader.batch()
    reader.close()
    assert [part.end.error is None for part in parts if part.end] == [False, False, False, True]
    assert parts[-1].data == b"here"


def test_batches_stay_small_whatever_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(NOISE)
    reader = SourceReader([tmp_path / "a", *[b"small"] * 2_000], KEY, CHUNK)
    while batch := reader.batch():
        assert len(batch) <= 256
        assert sum(len(part.data or b"") for part in batch) <= (1 << 20) + CHUNK
    reader.close()


def test_a_file_that_changes_on_is_kept_as_it_was_read_and_named(world: Any, tmp_path: Path) -> None:
    """End to end, with the chunks of the takes that were given up gone from no pack and named by no file."""
    path = tmp_path / "log"
    path.write_bytes(NOISE)

    def grow(done: Any) -> None:
        with path.open("ab") as file:
            file.write(b"one more line\n")

    async def main() -> None:
        node = await world.node("laptop")
        report = await node.vault.add_files([path], on_progress=grow)
        assert report.notes.changed == [str(path)]
        assert (report.files, report.whole) == (1, False)
        content = await node.vault.get(b"log")
        assert path.read_bytes().startswith(content)
        assert len(content) >= len(NOISE)
        assert (await node.vault.verify(deep=True)).ok
        assert all(node.disk.exists(pack_path(name)) for name in node.vault.core.store.on_disk())
        quiet = await node.vault.add_files([path])
        assert (quiet.unchanged, quiet.whole) == (0, True)
        assert await node.vault.get(b"log") == path.read_bytes()
    trio.run(main)
