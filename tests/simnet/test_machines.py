"""A machine's power cut, and what is said of a crash."""

from __future__ import annotations

from hinet_simnet.clock import VirtualClock
from hinet_simnet.disk import MemoryDisk
from hinet_simnet.machines import SimMachine, plain_text, plain_traceback
from hinet_simnet.randomness import SeededRandomness


def after_a_cut(seed: int, share: float) -> list[int]:
    """What is left of forty unsynced writes of a hundred bytes each."""
    machine = SimMachine("a", "laptop", "home", MemoryDisk(), VirtualClock(), tear_share=share)
    for number in range(40):
        machine.disk.append(f"{number:02d}", bytes(100))
    randomness = SeededRandomness(seed, "faults")
    machine.cut_power(randomness.below, randomness.unit)
    assert machine.tear_share == 0, "tearing holds for one power cut"
    return [machine.disk.size(name) for name in machine.disk.list("")]


def test_a_power_cut_tears_writes_where_the_seed_says_and_only_if_told() -> None:
    assert after_a_cut(1, 0.0) == []
    torn = after_a_cut(1, 0.5)
    assert 10 < len(torn) < 30
    assert len({size for size in torn if 0 < size < 100}) > 5, "cut at many places"
    assert after_a_cut(1, 0.5) == torn != after_a_cut(2, 0.5)
    assert len(after_a_cut(1, 1.0)) > 35


def test_a_crashs_text_has_no_addresses_and_its_traceback_only_our_frames() -> None:
    try:
        SeededRandomness(1).draw(-1)
    except ValueError as error:
        group = ExceptionGroup("x", [error, ExceptionGroup("y", [KeyError(f"{object()}")])])
    lines = plain_traceback(group).splitlines()
    assert lines[0].startswith("hinet_simnet.randomness:")
    assert lines[0].endswith(" draw")
    assert lines[1] == "ValueError: A draw can't be negative."
    assert plain_text(group) == "ValueError: A draw can't be negative.; KeyError: '<object object at 0x…>'"
