"""The crash matrix: a power cut at every system call of what the vault does, in every way that the disk allows.

    python tests/crash.py [--all] [--seed S] [--share P] [--json] [SCENE...]

Each scene is played once on a file system in memory that writes down every call; then the record is cut at each call,
what was not synced is lost, torn and put in another order, and the device starts again on what is left. The scene
`errors` puts an error in the place of each call instead. Exit code 1 when a promise was broken. `--all` looks at every
state; without it, a share drawn by the seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from crash import errors, matrix
from crash.scenes import SCENES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"default: all of {', '.join(SCENES)}, errors")
    parser.add_argument("--all", action="store_true", help="every state, with a sibling at each")
    parser.add_argument("--share", type=float, default=0.5, help="share of the states to look at (default 0.5)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same states (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    names = [*SCENES, "errors"]
    unknown = [name for name in given.scenes if name not in names]
    if unknown:
        parser.error(f"no scene {', '.join(map(repr, unknown))}")
    reports = []
    share = 1.0 if given.all else given.share
    for name in given.scenes or names:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            if name == "errors":
                report = errors.run(seed=given.seed, share=1.0 if given.all else share / 4, every=given.all)
            else:
                report = matrix.run(SCENES[name](Path(folder)), Path(folder), seed=given.seed, share=share,
                                    siblings=1.0 if given.all else 0.25)
        reports.append({**asdict(report), "cpu_s": round(time.process_time() - began, 2)})
        if not given.json:
            print(f"{name:10} {report.points:>5} crash points {report.states:>8,} states {report.checked:>6,} checked "
                  f"{reports[-1]['cpu_s']:>7.1f} s  {len(report.failures)} failed", flush=True)
            for failure in report.failures:
                print(failure)
    if given.json:
        print(json.dumps({"schema": "hinet.crash/1", "seed": given.seed, "scenes": reports}))
    return 1 if any(report["failures"] for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
