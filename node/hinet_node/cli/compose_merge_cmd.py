"""`hinet-node compose merge`: one delta made of several, as a task vector, as a whole model folder, or as both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import output, worker_call

INPUTS_MAX = 64


def add_to(app: typer.Typer) -> None:
    """Make this command part of `compose`."""
    app.command()(merge)


def merge(inputs: Annotated[list[str], typer.Argument(metavar="A.tau B.tau …", show_default=False,
                                                      help="Task vectors, and folders of PEFT adapters.")],
          out: Annotated[str, typer.Option("--out", "-o", metavar="M.tau", help="Write the merged task vector here.")]
          = "",
          model: Annotated[str, typer.Option(metavar="DIR", help="Write the whole merged model here (with --base).")]
          = "",
          method: Annotated[str, typer.Option(help="Which one: `hinet-node compose methods` lists them.")]
          = "task-arithmetic",
          settings: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=NUMBER", show_default=False,
                                                             help="A setting of the method; again for more.")] = None,
          weights: Annotated[str, typer.Option(metavar="W,W,…", help="A factor for each input, in their order; "
                                                                     "may be negative (default: 1 each).")] = "",
          base: Annotated[str, typer.Option("--base", help="The base: a folder, a file, or the digest of one in this "
                                                           "home (default: that one, where it is needed).")] = "",
          data: Annotated[str, typer.Option(metavar="PATH", help="What a method that needs data is given.")] = "",
          codec: Annotated[str, typer.Option(help="How the merged values are written (default: the most exact).")] = "",
          seed: Annotated[int, typer.Option(help="Of methods that draw at random.")] = 0,
          bound: Annotated[float | None, typer.Option(help="The distance from the base above which a merge is refused "
                                                           "(default by the base's size).")] = None,
          force: Annotated[bool, typer.Option("--force", help="Replace --out if it is there.")] = False) -> None:
    """Merge task vectors and adapters of one base. Any input or merge too far from the base is refused."""
    from hinet_node.cli import staging, tau_signing
    from hinet_node.errors import UsageError

    if not out and not model:
        raise UsageError("nothing says where the merge goes", next_step="add --out M.tau, or --model DIR")
    args: dict[str, Any] = {
        "inputs": [_input(one) for one in inputs], "method": method, "settings": _settings(settings or []),
        "weights": _weights(weights, len(inputs)), "base": _base(inputs, base, needed=bool(model)),
        "data": str(Path(data).absolute()) if data else None, "codec": codec or None, "seed": seed, "bound": bound,
    }
    if out:
        tau_signing.require_usable_key()
    with ExitStack() as stack:
        places = {name: stack.enter_context(staging.staged(Path(given), folder=name == "model",
                                                           replace=force and name == "out"))
                  for name, given in (("out", out), ("model", model)) if given}
        found = worker_call.call("compose.merge", {"out": None, "model": None, **args,
                                                   **{name: str(place) for name, place in places.items()}}, "merging")
        signed = tau_signing.sign(places["out"]) if out else {}
    for name, given in (("tau", out), ("model", model)):
        if given:
            found["written"][name]["path"] = str(Path(given).absolute())
    output.emit("hinet.compose-merge/1", {**found, **signed}, lambda: _lines({**found, **signed}))


def _input(given: str) -> str:
    from hinet_node.errors import UsageError

    path = Path(given).expanduser()
    if not path.exists():
        raise UsageError(f"there is no file {given}", next_step="check the path", code="E_NO_SUCH_FILE")
    return str(path.absolute())


def _settings(given: Sequence[str]) -> dict[str, float]:
    """NAME=NUMBER pairs. Errors: `UsageError` for anything else, or a name given twice."""
    from hinet_node.errors import UsageError

    found: dict[str, float] = {}
    for text in given:
        name, equals, value = text.partition("=")
        number = _number(value)
        if not name or not equals or number is None:
            raise UsageError(f"--set {text!r} is not understood", next_step="give a name and a number: "
                                                                            "--set density=0.1")
        if name in found:
            raise UsageError(f"--set gives {name} twice", next_step="give it once")
        found[name] = number
    return found


def _weights(given: str, inputs: int) -> list[float] | None:
    from hinet_node.errors import UsageError

    if not given:
        return None
    numbers = [_number(part) for part in given.split(",")]
    if None in numbers or len(numbers) != inputs:
        raise UsageError(f"--weights {given!r} are not {inputs} numbers",
                         next_step="give one for each input, in their order: --weights " + ",".join(["1"] * inputs))
    return [number for number in numbers if number is not None]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _base(inputs: Sequence[str], given: str, *, needed: bool) -> str | None:
    """The base that was given; else, where the whole model is wanted, the one in this home that fits the inputs."""
    from hinet_node.cli import base_choice, tau_make_cmd

    if given:
        return base_choice.model_path(given)
    files = [one for one in inputs if Path(one).expanduser().is_file()]
    return tau_make_cmd.base_of(str(Path(files[0]).expanduser().absolute()), "") if needed and files else None


def _lines(data: dict[str, Any]) -> list[str]:
    from hinet_node.cli import tau_signing

    rows = [[output.clean(str(row["label"])), f"{row['weight']:g}", f"{row['displacement']:.4g}",
             f"{row['missing']} tensors are as in the base" if row["missing"] else ""] for row in data["inputs"]]
    settings = ", ".join(f"{name} {value:g}" for name, value in data["settings"].items())
    head = f"{data['method']}{f' ({settings})' if settings and len(rows) > 1 else ''}: {data['tensors']} tensors"
    lines = [output.style(head, "bold"), *output.table(rows, ["INPUT", "WEIGHT", "MOVES THE BASE BY", ""], indent="  ")]
    if data["left_out"]:
        lines.append(f"  left out, their weight is 0: {output.clean(', '.join(data['left_out']))}")
    lines.append(f"  the merge moves the base by {data['displacement']:.4g}; refused above {data['bound']:.4g}")
    written = data["written"]
    if "tau" in written:
        lines += [f"{output.clean(written['tau']['path'])}: {output.size_text(written['tau']['bytes'])}, "
                  f"{written['tau']['kept']:,} entries in {written['tau']['codec']}, "
                  f"{output.clean(tau_signing.signed_text(data))}"]
    if "model" in written:
        lines.append(f"{output.clean(written['model']['path'])}: {output.size_text(written['model']['bytes'])} "
                     "of weights in float32")
        lines += [output.clean(note) for note in written["model"]["notes"]]
    return lines
