"""Appending past the page cache: the bytes are the same whatever sizes come, and whoever else writes meanwhile."""

from __future__ import annotations

import errno
import os
import random
import resource
import threading
from pathlib import Path

import pytest

from hinet_node.errors import NoSpace
from hinet_node.real.disk import RealDisk
from hinet_node.real.disk_direct import DirectWriter

NOISE = random.Random(5).randbytes(9 << 20)
SIZES = [(4 << 20, 4 << 20), (1 << 20, 5, 1 << 20), (3, 1 << 20, 4093, 2 << 20), ((8 << 20) + 4096, 1), (1044480,) * 5,
         ((1 << 20) + 1, (1 << 20) - 1, 1 << 20)]


def places(tmp_path: Path) -> list[Path]:
    """The usual file system, and one in memory where there is one."""
    shared = Path("/dev/shm")
    return [tmp_path, shared / tmp_path.name] if shared.is_dir() and os.access(shared, os.W_OK) else [tmp_path]


@pytest.mark.parametrize("sizes", SIZES)
def test_appended_pieces_of_any_size_come_back(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    for place in places(tmp_path):
        disk, at = RealDisk(place), 0
        for size in sizes:
            disk.append("parts/a", NOISE[at:at + size])
            at += size
        disk.commit("parts/a", "packs/a")
        assert disk.read("packs/a") == NOISE[:at]
        disk.remove("packs/a")


def test_whole_blocks_of_a_large_piece_go_past_the_cache_where_the_system_can(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        written = DirectWriter().write(descriptor, NOISE[:(5 << 20) + 7], 0)
        assert written in (0, 5 << 20)
        assert DirectWriter().write(descriptor, NOISE, written + 1) == 0
        assert DirectWriter().write(descriptor, NOISE[:4096], written) == 0
        os.write(descriptor, b"odd")  # the descriptor is as it was
    finally:
        os.close(descriptor)
    assert (tmp_path / "a").read_bytes() == NOISE[:written] + b"odd"


def test_threads_that_append_at_once_do_not_mix_their_bytes(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)

    def work(number: int) -> None:
        for at in range(3):
            disk.append(f"parts/{number}", NOISE[number + at:number + at + (2 << 20)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        expected = b"".join(NOISE[number + at:number + at + (2 << 20)] for at in range(3))
        assert disk.read(f"parts/{number}") == expected


def test_an_append_that_fails_half_way_leaves_the_part_as_it_was(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.append("parts/a", NOISE[:1 << 20])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, limits[1]))
    try:
        with pytest.raises((OSError, NoSpace)) as caught:
            disk.append("parts/a", NOISE[1 << 20:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(caught.value, NoSpace) or caught.value.errno == errno.EFBIG
    assert disk.read("parts/a") == NOISE[:1 << 20]
    disk.append("parts/a", NOISE[1 << 20:])
    assert disk.read("parts/a") == NOISE
