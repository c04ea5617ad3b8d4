"""`make bench`: every bench in turn, as Markdown tables or as JSON.

    python tests/bench.py [--json] [--repeats N] [--list] [NAME...]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import Bench, Row

BENCHES = ("startup", "idle", "join", "session", "chain", "tau", "store", "replication", "pocket", "simnet",
           "averaging")
THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}


def main() -> int:
    """Exit code 1 when a bench could not run to its end; figures fail nothing."""
    parser = argparse.ArgumentParser(description="Speeds and sizes, each beside a peer measured in the same run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}; default: all")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--repeats", "-n", type=int, default=3, help="how often each thing is measured (default 3)")
    parser.add_argument("--list", action="store_true", help="name the benches and what they measure")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in BENCHES]
    if unknown or given.repeats < 1:
        parser.error(f"no bench {', '.join(unknown)}" if unknown else "--repeats is at least 1")
    if given.list:
        for name in BENCHES:
            print(f"{name:12}{(importlib.import_module(f'bench.{name}').__doc__ or '').splitlines()[0]}")
        return 0
    # Where it is set, each start of a command compiles every module anew, which no owner's machine does.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.update({name: value for name, value in THREADS.items() if name not in os.environ})
    results = [measured(name, given.repeats, quiet=given.json) for name in given.names or BENCHES]
    if given.json:
        print(json.dumps({"schema": "hinet.bench/1", "machine": machine(), "repeats": given.repeats,
                          "benches": results}))
    return 1 if any(result["error"] for result in results) else 0


def measured(name: str, repeats: int, *, quiet: bool) -> dict[str, Any]:
    """Run one bench in a folder of its own and show its table."""
    print(f"bench {name} …", file=sys.stderr, flush=True)
    load, begun, error = os.getloadavg()[0], time.perf_counter(), None
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", ignore_cleanup_errors=True) as folder:
        bench = Bench(name, repeats, Path(folder))
        try:
            importlib.import_module(f"bench.{name}").run(bench)
        except (RuntimeError, OSError, ImportError, AssertionError, ValueError, KeyError) as failed:
            error = f"{type(failed).__name__}: {failed}"
    loads = [round(load, 1), round(os.getloadavg()[0], 1)]
    result = {"name": name, "seconds": round(time.perf_counter() - begun, 1), "load_before_after": loads,
              "rows": [row.as_json() for row in bench.rows], "notes": bench.notes, "error": error}
    if not quiet:
        print(table(bench, result), flush=True)
    return result


def table(bench: Bench, result: dict[str, Any]) -> str:
    """A bench's rows as Markdown."""
    lines = [f"### {bench.name}", "", "| what | unit | ours | peer | peer's | ours / peer's | better | bar |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in bench.rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}" if row.ratio < 100 else f"{row.ratio:.0f}"
        lines.append(f"| {row.what} | {row.unit} | {shown(row.ours)} | {row.peer} | {shown(row.theirs)} | {ratio} | "
                     f"{'less' if row.less else 'more'} | {barred(row)} |")
    before, after = result["load_before_after"]
    lines += ["", f"{result['seconds']} s, load average {before} before and {after} after."]
    lines += bench.notes + ([f"It ended early: {result['error']}"] if result["error"] else [])
    return "\n".join([*lines, ""])


def barred(row: Row) -> str:
    """The bars of a row, and whether its figures reach them."""
    sign = "≤" if row.less else "≥"
    told = [f"{sign} {digits(bar)}{of}" for bar, of in ((row.bar, ""), (row.ratio_bar, " of the peer's"))
            if bar is not None]
    verdict = {True: "passes", False: "**misses**", None: "not compared"}[row.passes]
    return f"{', '.join(told)}: {verdict}" if told else "–"


def shown(values: Sequence[float]) -> str:
    """median [min..max], four digits at most."""
    if not values:
        return "–"
    if len(values) == 1 or min(values) == max(values):
        return digits(statistics.median(values))
    return f"{digits(statistics.median(values))} [{digits(min(values))}..{digits(max(values))}]"


def digits(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 10 else f"{value:.4g}"


def machine() -> dict[str, Any]:
    return {"system": platform.system(), "processor": platform.machine(), "cpus": os.cpu_count(),
            "python": platform.python_version()}


if __name__ == "__main__":
    sys.exit(main())
