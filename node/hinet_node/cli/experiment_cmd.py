"""`hinet-node experiment e1`: an experiment that ships, run in a worker, with what was registered printed first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import output, root

app = root.group("Experiments that ship, run on this machine.")

EXPECTED = {"full": "under 40 minutes on two free cores", "quick": "under 5 minutes on two free cores"}


@app.callback()
def group() -> None:
    """Experiments that ship, run on this machine."""


@app.command()
def e1(out: Annotated[str, typer.Option("--out", "-o", metavar="FOLDER", help="Where the report, answers and "
                                                                              "specialists go. The same folder again "
                                                                              "goes on where it stopped.")],
       quick: Annotated[bool, typer.Option("--quick", help="A small run: few facts and merges, no complementary "
                                                           "pair.")] = False,
       seed: Annotated[int, typer.Option(min=0, max=2**31, help="What facts and lessons are drawn from.")] = 0,
       threads: Annotated[int, typer.Option(min=0, max=1024, help="Threads; 0: all cores.")] = 0) -> None:
    """Do specialists composed know more than the best of them alone? Three invented registries, three specialists."""
    from hinet_node.cli import worker_call
    from hinet_node.errors import UsageError
    from hinet_tiers.experiments import report

    chosen = "quick" if quick else "full"
    folder = Path(out).expanduser().absolute()
    if not folder.parent.is_dir():
        raise UsageError(f"there is no folder {folder.parent} to write to",
                         next_step=f"make it first: mkdir -p {folder.parent}", code="E_NO_SUCH_FILE")
    output.say(f"e1, {chosen} size, seed {seed}: {EXPECTED[chosen]}. Ctrl-C stops it; the same command goes on.")
    for line in ("Registered beforehand:", *(f"  {line}" for line in report.registered_lines())):
        output.say(line)
    args = {"size": chosen, "seed": seed, "out": str(folder), "threads": threads or None}
    found = worker_call.call("experiment.e1", args, f"e1, {chosen}", heard=_spoken())
    output.emit("hinet.experiment-e1/1", found, lambda: _lines(found))


def _spoken() -> Callable[[Mapping[str, Any]], None]:
    """Prints each stage's line once, when it first comes with a progress report."""
    told = 0

    def hear(report: Mapping[str, Any]) -> None:
        nonlocal told
        said, count = list(report.get("said") or ()), int(report.get("said_count") or 0)
        for line in said[len(said) - (count - told):] if count > told else ():
            output.say(output.clean_line(str(line)))
        told = max(told, count)

    return hear


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    domains = list(found["domains"])
    rows = [[name, *(f"{row[domain]:.3f}" for domain in domains), f"{row['macro']:.3f}"]
            for name, row in found["scores"].items()]
    yield from output.table(rows, ("", *(domain.upper() for domain in domains), "MACRO"))
    yield ""
    for row in found["criteria"]:
        told = output.style("passed", "green") if row["passed"] else output.style("failed", "red")
        yield f"{told}  {row['name']}: {output.clean(row['measured'])}"
    for name, told in found["signals"].items():
        yield f"{name.replace('_', ' ')}: {told}"
    yield f"{output.duration_text(found['wall_s'])}, {found['cpu_s']:.0f} CPU s; {output.clean(found['report'])}"
