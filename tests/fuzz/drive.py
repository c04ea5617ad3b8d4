"""The process in which one target is attacked: bounded memory, bounded time for each input, each input noted first.

Leaves starting it to `tests/fuzz.py`.
"""

from __future__ import annotations

import hashlib
import mmap
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from fuzz import mutate
from fuzz.target import Target

FOUND = Path(__file__).parent / "found"
HANG_S = 10.0
"""Processor time, so that a busy machine is no hang."""
MEMORY_BYTES_MAX = 200_000_000
ROOM_BYTES = 120_000_000
"""What a process may grow by, after the parsers are loaded."""
NOTE_BYTES_MAX = 4 << 20
FAILURES_MAX = 5
TRACEBACK_LINES = 6


class Hang(BaseException):
    """An input took too long. No `Exception`, so that no parser takes it for one of its own."""


def all_targets() -> dict[str, Target]:
    """Every target by its name. Imports the parsers."""
    from fuzz import file_targets, model_targets, node_targets, vault_targets, wire_targets

    modules = (wire_targets, file_targets, vault_targets, node_targets, model_targets)
    return {one.name: one for module in modules for one in module.targets()}


def work(target: Target, count: int, seed: str, noted: mmap.mmap, answer: Connection) -> None:
    """What the process does: attack within bounds, and tell the outcome."""
    signal.signal(signal.SIGPROF, _hang)
    with _bounded():
        result = attack(target, count, seed, noted)
    if result["peak_bytes"] > MEMORY_BYTES_MAX:
        result["failures"].append({"file": target.name, "what": f"{result['peak_bytes']:,} bytes of memory"})
    answer.send(result)


def attack(target: Target, count: int, seed: str, noted: mmap.mmap | memoryview) -> dict[str, Any]:
    """Valid inputs, those that failed before, then `count` damaged ones."""
    begun, taken, number, failures = time.process_time(), 0, 0, []
    assert any(tried(target, raw) for raw in target.seeds), f"no valid input of {target.name} is taken"
    before = [path.read_bytes() for path in sorted(FOUND.glob(f"{target.name.replace(' ', '-')}.*"))]
    random = Random(seed)
    for raw in chain(target.seeds, before, (one for _, one in zip(range(count), inputs(target, random), strict=False))):
        number += 1
        _note(noted, raw)
        try:
            taken += tried(target, raw)
        except (Exception, Hang) as error:
            what = "".join(traceback.format_exception(error, limit=-TRACEBACK_LINES))
            failures.append({"file": str(kept(target.name, raw)), "what": what})
            if len(failures) == FAILURES_MAX:
                break
    unit = 1 if sys.platform == "darwin" else 1_024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"target": target.name, "inputs": number, "taken": taken, "cpu_s": time.process_time() - begun,
            "peak_bytes": peak, "failures": failures}


def inputs(target: Target, random: Random) -> Iterator[bytes]:
    """Damaged inputs without end, most of them with their envelope mended, if the target has one."""
    while True:
        if random.random() < 0.02:
            yield mutate.noise(random)
        elif target.dress is not None and random.random() < 0.7:
            yield target.dress(mutate.damaged(random.choice(target.inner), target.inner, random), random)
        else:
            yield mutate.damaged(random.choice(target.seeds), target.seeds, random)


def tried(target: Target, raw: bytes) -> bool:
    """Whether the input was taken; False for one of the documented errors, with a text for a person."""
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        target.run(raw)
    except target.errors as error:
        if not str(error):
            raise AssertionError(f"{type(error).__name__} says nothing") from error
        return False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return True


def kept(name: str, raw: bytes) -> Path:
    """The input as a file; its name is its content's, so that it is kept once."""
    FOUND.mkdir(exist_ok=True)
    file = FOUND / f"{name.replace(' ', '-')}.{hashlib.sha256(raw).hexdigest()[:12]}"
    file.write_bytes(raw)
    return file


def _note(noted: mmap.mmap | memoryview, raw: bytes) -> None:
    noted[:8 + min(len(raw), NOTE_BYTES_MAX - 8)] = len(raw).to_bytes(8, "big") + raw[:NOTE_BYTES_MAX - 8]


def _hang(signum: int, frame: object) -> None:
    raise Hang(f"more than {HANG_S:.0f} s of processor time")


@contextmanager
def _bounded() -> Iterator[None]:
    """No more address space than now and `ROOM_BYTES`: what asks for more gets a MemoryError, and that is a failure."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    if pages:
        room = pages * resource.getpagesize() + ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    yield

