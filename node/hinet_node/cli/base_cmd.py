"""`hinet-node base show|import|use`: the base models in this home. Work with and without a running agent.
`base digest` says which base any model is, and needs no home."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import agent_call, context, output, root

app = root.group("Show or import the base model.")


@app.command()
def show() -> None:
    """Show the bases in this home; * is the one in use."""
    data = _run("base.show", {}, None)
    output.emit("hinet.base/1", data, lambda: _shown(data))


@app.command("import")
def import_(source: Annotated[str, typer.Argument(metavar="[PATH]", help="A Hugging Face folder or a GGUF file of a "
                                                                         "Llama-family model; default: the embedded "
                                                                         "model.")] = "") -> None:
    """Take up a base model: its bf16 form, its digest, its 4-bit form."""
    path = str(Path(source).absolute()) if source else None
    data = _run("base.import", {"source": path}, "deriving the base")
    base = data["base"]
    output.emit("hinet.base/1", data, [
        f"{output.clean(base['name'])}, {base['parameters']:,} parameters, base {output.style(base['digest'], 'bold')}",
        *(output.clean(note) for note in base["notes"])])


@app.command()
def use(base: Annotated[str, typer.Argument(help="A base's digest, or its beginning.")]) -> None:
    """Use another base of this home from now on."""
    data = _run("base.use", {"base": base}, None)
    output.emit("hinet.base/1", data, lambda: _shown(data))


@app.command()
def digest(path: Annotated[str, typer.Argument(help="A model folder, a .safetensors or .gguf file, or the digest of a "
                                                    "base in this home.")]) -> None:
    """Print which base a model is: the digest of its tensors, however they are spread over files."""
    from hinet_node.cli import base_choice, worker_call

    found = worker_call.call("base.digest", {"path": base_choice.model_path(path)}, "reading the model")
    output.emit("hinet.base-digest/1", found, lambda: _digest_lines(found))


def _digest_lines(found: dict[str, Any]) -> list[str]:
    kinds = ", ".join(f"{count} {dtype}" for dtype, count in found["dtypes"].items())
    lines = [found["digest"]]
    if found["as_base"] != found["digest"]:
        lines.append(f"{found['as_base']}  once installed as a base, where values are rounded to bf16")
    for name in (found["head_dropped"], *found["left_out"]):
        if name:
            output.say(f"not counted: {output.clean(name)}")
    tied = ", head tied to the embedding" if found["tied"] else ""
    output.say(f"{output.clean(found['name'])}: {found['tensors']} tensors ({kinds}), {found['parameters']:,} "
               f"parameters{tied}")
    return lines


def _run(verb: str, args: dict[str, Any], label: str | None) -> dict[str, Any]:
    """Through the agent when one runs in this home, else under the home's lock."""
    from hinet_node.local.client import agent_answers

    if agent_answers(context.home_path()):
        return agent_call.call(verb, args, label=label, timeout_s=None)
    if label is None:
        return _alone(verb, args, lambda progress: None)
    with output.progress(label) as report:
        return _alone(verb, args, report)


def _alone(verb: str, args: dict[str, Any], report: Callable[[Any], None]) -> dict[str, Any]:
    import trio

    from hinet_node import home
    from hinet_node.learning.bases import Bases
    from hinet_node.learning.service import base_state
    from hinet_node.real.compute import ProcessCompute
    from hinet_node.real.disk import RealDisk

    folder = context.home_path()
    bases = Bases(RealDisk(folder), ProcessCompute())
    if verb == "base.show":
        return base_state(bases)
    with home.locked(folder):
        if verb == "base.use":
            bases.select(bases.find(args["base"]))
            return base_state(bases)
        base = trio.run(bases.install, args["source"], report)
        return {"base": base.as_json(), **base_state(bases)}


def _shown(data: dict[str, Any]) -> Iterable[str]:
    rows = [["*" if base["digest"] == data["current"] else " ", base["digest"][:12], output.clean(base["name"]),
             f"{base['parameters']:,}", ", ".join(sorted(row["kind"] for row in base["representations"]))]
            for base in data["bases"]]
    return output.table(rows, ("", "BASE", "NAME", "PARAMETERS", "FORMS")) or [
        f"No base is here yet; the embedded one is taken up on first need, or now: {context.typed('base import')}"]
