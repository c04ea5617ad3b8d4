"""`make mutants`: takes away each verification in turn, in a copy of the tree, and sees a test go red.

    python tests/mutants.py [--list] [--json] [--only TEXT] [--every N] [--trusting]

A mutant *survives* when its tests stay green: then nobody would notice if the check were gone. Exit code 1 for that,
and for a mutant whose place in the source is not there exactly once any more: mend the table in tests/mutation/.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mutation import bulk_mutants, model_mutants, node_mutants, protocol_mutants, root_mutants, vault_mutants
from mutation.mutant import Mutant, applied

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("protocol", "tiers", "node", "simnet", "tests", "pyproject.toml", "SPEC.md")
MUTANTS: list[Mutant] = [*protocol_mutants.MUTANTS, *node_mutants.MUTANTS, *root_mutants.MUTANTS,
                         *bulk_mutants.MUTANTS, *vault_mutants.MUTANTS, *model_mutants.MUTANTS]
WALL_S_MAX = 600.0
LIBRARIES = ("pytest", "hypothesis", "hypothesis.internal.conjecture.engine", "nacl.signing", "nacl.public", "blake3",
             "msgpack", "cryptography.hazmat.primitives.kdf.hkdf", "spake2", "trio", "zstandard", "mnemonic", "numpy")


def main() -> int:
    """Exit code 1 when a mutant survives or has lost its place."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--list", action="store_true", help="name the mutants")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose name or file holds TEXT")
    parser.add_argument("--trusting", action="store_true", help="don't run the tests on the unchanged copy first")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth of them only")
    given = parser.parse_args()
    wanted = [one for one in MUTANTS if given.only in one.name or given.only in one.file][::max(1, given.every)]
    if given.list:
        print("\n".join(f"{one.file}: {one.name}" for one in wanted))
        return 0
    for library in LIBRARIES:
        __import__(library)
    results = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied(Path(folder))
        for mutant in (*([] if given.trusting else [unchanged(wanted)]), *wanted):
            results.append(tested(mutant, tree))
            if not given.json:
                print(f"{results[-1]['outcome']:10}{results[-1]['seconds']:6.1f} s  {mutant.name}", flush=True)
    alive = [result for result in results if result["outcome"] not in ("noticed", "as it is")]
    if given.json:
        print(json.dumps({"schema": "hinet.mutants/1", "mutants": results}))
    else:
        print(f"{sum(result['outcome'] == 'noticed' for result in results)} of {len(wanted)} mutants were noticed")
        for result in alive:
            print(f"{result['outcome']}: {result['file']}: {result['name']} {result['why']}")
    return 1 if alive else 0


def copied(folder: Path) -> Path:
    """The tree as far as tests need it, to be changed at will."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "found"))
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


def unchanged(wanted: Sequence[Mutant]) -> Mutant:
    """All tests of the mutants with nothing changed: they must be green, or a red one would say nothing."""
    return Mutant("nothing is taken away", "pyproject.toml", "[project]\n", "[project]\n",
                  tuple(dict.fromkeys(pattern for mutant in wanted for pattern in mutant.tests)))


def tested(mutant: Mutant, tree: Path) -> dict[str, Any]:
    """What the mutant's tests say of it. The file is as before when this returns."""
    begun, file = time.monotonic(), tree / mutant.file
    before, why = file.read_text(), ""
    try:
        file.write_text(applied(mutant, before))
        same = mutant.old == mutant.new
        code, failed = pytest_on(mutant, tree)
        outcome = {0: "as it is" if same else "SURVIVES", 1: "RED ALREADY" if same else "noticed"}.get(code, "BROKEN")
        why = f"by {failed}" if failed else f"(pytest ended with {code})"
    except ValueError as error:
        outcome, why = "MISPLACED", str(error)
    finally:
        file.write_text(before)
    return {"name": mutant.name, "file": mutant.file, "outcome": outcome, "why": why,
            "seconds": round(time.monotonic() - begun, 2)}


def pytest_on(mutant: Mutant, tree: Path) -> tuple[int | None, str]:
    """The exit code of pytest over the mutant's tests and the one that failed, in a process forked off this one, which
    has the libraries loaded and nothing of ours."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    child = fork.Process(target=_run, args=(mutant, tree, there))
    child.start()
    there.close()
    child.join(WALL_S_MAX)
    if child.is_alive():
        child.kill()
        child.join()
        return 1, "a test that does not end"
    failed = here.recv() if here.poll() and child.exitcode == 1 else ""
    return child.exitcode, failed


class _First:
    """Tells which test failed."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._tell(report.nodeid)


def _run(mutant: Mutant, tree: Path, told: Connection) -> None:
    import pytest

    os.chdir(tree)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.path[:] = [one for one in sys.path if not (Path(one or ".") / "hinet_protocol").is_dir()]
    sys.dont_write_bytecode = True
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    files = [str(file) for pattern in mutant.tests for file in sorted((tree / "tests").glob(pattern))]
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", *files],
                       plugins=[_First(told.send)])
    os._exit(int(code))


if __name__ == "__main__":
    sys.exit(main())
