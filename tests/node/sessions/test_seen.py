"""What is remembered of each sibling between two runs of the agent."""

import pytest

from hinet_node.sessions import seen
from hinet_node.sessions.seen import Sighting
from hinet_protocol import canonical
from hinet_simnet.disk import MemoryDisk

A, B = bytes([1]) * 32, bytes([2]) * 32
FULL = Sighting(1_800_000_000, "/ip4/192.0.2.7/tcp/4001", True, "0.1.0", ("torch", "onnx"), 8 << 30, (bytes(32),), (A,))


def test_what_was_seen_is_there_after_a_restart() -> None:
    disk = MemoryDisk()
    seen.write(disk, {A: FULL, B: Sighting(5)})
    assert seen.read(disk) == {A: FULL, B: Sighting(5)}


def test_a_file_of_times_alone_is_still_read() -> None:
    disk = MemoryDisk()
    disk.write_atomic(seen.SEEN, canonical.encode([[A, 7]]))
    assert seen.read(disk) == {A: Sighting(7)}


@pytest.mark.parametrize("row", [True, "soon", {"time_s": "soon"}, {"time_s": 1, "backends": "torch"},
                                 {"time_s": 1, "heads": ["text"]}, {"time_s": 1, "relayed": 1}, {}, None, [1]])
def test_a_damaged_file_is_forgotten_and_no_error(row: object) -> None:
    disk = MemoryDisk()
    disk.write_atomic(seen.SEEN, canonical.encode([[A, row]]))
    assert seen.read(disk) == {}


def test_a_full_disk_costs_the_memory_and_nothing_else() -> None:
    disk = MemoryDisk(capacity_bytes=10)
    seen.write(disk, {A: FULL})
    assert seen.read(disk) == {}
