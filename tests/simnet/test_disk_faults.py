"""What only the in-memory disk does: power cuts with torn writes, room, bad reads. The port's meaning is tested with
the real disk's tests."""

from __future__ import annotations

import pytest

from hinet_node.errors import NoSpace
from hinet_simnet.disk import MemoryDisk


def test_a_power_cut_takes_what_was_not_synced_and_only_that() -> None:
    disk = MemoryDisk()
    disk.write_atomic("whole", b"old")
    disk.append("part", b"12345678")
    disk.append("other", b"abc")
    disk.commit("other", "kept")
    disk.crash()
    assert (disk.read("whole"), disk.read("kept"), disk.list("")) == (b"old", b"abc", ["kept", "whole"])
    assert disk.used_bytes() == 6


def test_a_torn_write_keeps_a_beginning() -> None:
    disk = MemoryDisk()
    disk.append("part", b"12345678")
    disk.crash(lambda size: size - 3)
    assert disk.read("part") == b"12345"
    disk.append("part", b"xyz")
    disk.crash(lambda size: 1)
    assert disk.read("part") == b"12345x", "what survived one power cut survives the next"


def test_used_bytes_and_lists_follow_every_change() -> None:
    disk = MemoryDisk(capacity_bytes=100)
    for number in range(10):
        disk.write_atomic(f"a/b/{number}", bytes(number))
    disk.write_atomic("a/b/9", b"")
    disk.append("a/part", b"1234")
    disk.append("a/part", b"5")
    disk.commit("a/part", "a/b/0")
    disk.remove("a/b/1")
    files = [f"a/b/{name}" for name in disk.list("a/b")]
    assert disk.used_bytes() == sum(disk.size(name) for name in files) == 2 + 3 + 4 + 5 + 6 + 7 + 8 + 5
    assert (disk.list(""), disk.list("a"), len(files)) == (["a"], ["b"], 9)
    assert disk.free_bytes() == 100 - disk.used_bytes()
    twin = disk.copy("twin")
    assert (twin.used_bytes(), twin.list("a/b")) == (disk.used_bytes(), disk.list("a/b"))
    with pytest.raises(NoSpace):
        disk.append("more", bytes(101))
    assert "more" not in disk.list("")


def test_bad_reads_fail_as_often_as_they_are_told() -> None:
    disk = MemoryDisk()
    disk.write_atomic("a", b"1")
    disk.bad_reads = 2
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            disk.read("a")
    assert disk.read("a") == b"1"
