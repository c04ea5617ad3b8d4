"""`make fuzz`: every parser that reads bytes from outside gets damaged ones, each in a process with bounds.

    python tests/fuzz.py [--inputs N] [--seed S] [--json] [--list] [--replay] [TARGET...]

An input fails when anything but the documented errors comes out, when it takes more than `drive.HANG_S` of processor
time, when the process grows beyond `drive.MEMORY_BYTES_MAX` or dies. A failing input is written to tests/fuzz/found/
and is played by every later run (`--replay` plays only these): it is the regression test.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import sys
import tempfile
from typing import Any

from fuzz import drive
from fuzz.drive import NOTE_BYTES_MAX, kept
from fuzz.target import Target

WALL_S_MAX = 300.0


def main() -> int:
    """Exit code 1 when an input failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all; see --list")
    parser.add_argument("--inputs", "-n", type=int, default=100_000, help="how many in all (default 100000)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same inputs (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--list", action="store_true", help="name the targets")
    parser.add_argument("--replay", action="store_true", help="only the inputs that failed before")
    given = parser.parse_args()
    targets = drive.all_targets()
    names = list(targets)
    unknown = [name for name in given.targets if name not in names]
    if unknown or given.inputs < 1:
        parser.error(f"no target {', '.join(map(repr, unknown))}" if unknown else "--inputs is at least 1")
    if given.list:
        print("\n".join(names))
        return 0
    wanted = given.targets or names
    share = 0 if given.replay else -(-given.inputs // len(wanted))
    results = []
    for name in wanted:
        results.append(attack(targets[name], share, given.seed))
        if not given.json:
            print(line(results[-1]), flush=True)
    total = {key: sum(result[key] for result in results) for key in ("inputs", "taken", "cpu_s")}
    peak = max(result["peak_bytes"] for result in results)
    failures = [failure for result in results for failure in result["failures"]]
    if given.json:
        print(json.dumps({"schema": "hinet.fuzz/1", "seed": given.seed, **total, "peak_bytes": peak,
                          "targets": results}))
    else:
        print(f"{total['inputs']:,} inputs, {total['taken']:,} of them were taken as valid; "
              f"{total['inputs'] / max(total['cpu_s'], 1e-9):,.0f} a second of one core; "
              f"at most {peak / 1e6:.0f} MB; {len(failures)} failed")
        for failure in failures:
            print(f"\n{failure['file']}\n{failure['what']}")
    return 1 if failures else 0


def line(result: dict[str, Any]) -> str:
    return (f"{result['target']:20}{result['inputs']:>9,} inputs {result['taken']:>8,} taken "
            f"{result['inputs'] / max(result['cpu_s'], 1e-9):>8,.0f}/s {result['peak_bytes'] / 1e6:>5.0f} MB "
            f"{len(result['failures'])} failed")


def attack(target: Target, inputs: int, seed: int) -> dict[str, Any]:
    """One target in a process of its own, forked off this one, which has loaded the parsers already. What kills the
    process is found in the memory where it notes each input."""
    with tempfile.TemporaryFile() as file:
        file.truncate(NOTE_BYTES_MAX)
        with mmap.mmap(file.fileno(), NOTE_BYTES_MAX) as note:
            fork = multiprocessing.get_context("fork")
            here, there = fork.Pipe(duplex=False)
            child = fork.Process(target=drive.work, args=(target, inputs, f"{seed} {target.name}", note, there))
            child.start()
            there.close()
            try:
                if here.poll(WALL_S_MAX + inputs / 20):
                    result: dict[str, Any] = here.recv()
                    child.join()
                    return result
                ended = "no end in sight"
            except EOFError:
                child.join()
                ended = f"exit code {child.exitcode}"
            child.kill()
            child.join()
            file_kept = kept(target.name, bytes(note[8:8 + int.from_bytes(note[:8], "big")]))
    what = f"the process was stopped: {ended}"
    return {"target": target.name, "inputs": 0, "taken": 0, "cpu_s": 0.0, "peak_bytes": 0,
            "failures": [{"file": str(file_kept), "what": what}]}


if __name__ == "__main__":
    sys.exit(main())
