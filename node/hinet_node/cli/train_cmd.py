"""`hinet-node train`: teach the personal model, as this device's tier does it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import agent_call, context, output


def train(recipe: Annotated[str, typer.Option(help="A shipped recipe (demo, quick) or a .toml file.")] = "demo",
          teacher: Annotated[str, typer.Option(metavar="REVISION", help="On a laptop: the task vector to learn from "
                                                                        "(default: the newest).")] = "",
          held_out: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Questions (JSON) that no training "
                                                                                  "text may repeat.")] = None,
          detach: Annotated[bool, typer.Option(help="Return at once; the agent goes on.")] = False,
          list_: Annotated[bool, typer.Option("--list", help="List the jobs instead.")] = False,
          cancel: Annotated[str, typer.Option(metavar="JOB", help="Cancel a job instead.")] = "") -> None:
    """Teach the personal model what the vault's notes say.

    A cloud device makes a task vector from the notes; a laptop distils the newest one into an adapter. The work goes on
    in the agent when this command is interrupted.
    """
    if list_:
        jobs = agent_call.call("jobs.list")["jobs"]
        output.emit("hinet.jobs/1", {"jobs": jobs}, lambda: job_table(jobs))
        return
    if cancel:
        job = agent_call.call("jobs.cancel", {"job": cancel})["job"]
        output.emit("hinet.job/1", job, [f"{job['id']} is {job['state']}."])
        return
    chosen = str(Path(recipe).absolute()) if recipe.endswith(".toml") else recipe
    args = {"recipe": chosen, "revision": teacher or None, "detach": detach,
            "held_out": [question for path in held_out or () for question in questions_in(path)]}
    job = agent_call.call("train", args, label="training", timeout_s=None)["job"]
    output.emit("hinet.job/1", job, lambda: _report(job))


def questions_in(path: str) -> list[str]:
    """The question texts of a JSON file: a list of texts or of `{question}`. Errors: `UsageError`."""
    import json

    from hinet_node.errors import UsageError

    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        return [row if isinstance(row, str) else str(row["question"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no list of questions ({error})",
                         next_step='a JSON file such as ["Where do I live?", {"question": "Who is Rex?"}]') from None


def _report(job: dict[str, Any]) -> Iterable[str]:
    if job["state"] != "done":
        yield f"The job {job['id']} is {job['state']}; see how far it is: {context.typed('train --list')}"
        return
    result = job["result"]
    for row in job["evidence"].get("left_out", ()):
        yield output.style(f"left out {output.clean_line(row['note'])}: {output.clean_line(row['why'])}", "yellow")
    yield (f"{result['kind']} {output.style(result['revision'], 'bold')}, {output.size_text(result['bytes'])}, "
           f"in {job['evidence']['seconds']:.0f} s; it is in the vault.")
    if result["kind"] == "task-vector":
        yield f"next: on the laptop  {context.typed('train')}"
    else:
        yield f"next: on the pocket  {context.typed('adapters promote ' + result['revision'])}"


def job_table(jobs: list[dict[str, Any]]) -> list[str]:
    """The jobs, oldest first."""
    rows = []
    for job in jobs:
        progress, error = job["progress"], job["error"] or {}
        share = f"{100 * progress['step'] // progress['total']}%" if progress.get("total") else ""
        told = error.get("what") or (job["result"] or {}).get("revision") or f"{share} {progress.get('note', '')}"
        rows.append([job["id"], job["state"], output.ago_text(max(0.0, time.time() - job["created_unix_s"])),
                     output.clean(str(told).strip())])
    return output.table(rows, ("JOB", "STATE", "SINCE", "")) or ["No job has been started yet."]
