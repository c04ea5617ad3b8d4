"""`hinet-node tau make|apply`: from two models to a task vector, and back to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import output, worker_call

BASE_HELP = "The base: a model folder, a .safetensors or .gguf file, or the digest of a base in this home."


def add_to(app: typer.Typer) -> None:
    """Make these commands part of `tau`."""
    for command in (make, apply):
        app.command()(command)


def make(tuned: Annotated[str, typer.Argument(help="The tuned model: a folder or a file.")],
         base: Annotated[str, typer.Option("--base", help=BASE_HELP)],
         out: Annotated[str, typer.Option("--out", "-o", metavar="F.tau", help="Where to write it.")],
         density: Annotated[float | None, typer.Option(help="The share of all entries to keep, by one threshold "
                                                            "(default 0.2).")] = None,
         chunked: Annotated[str, typer.Option(metavar="KEEP/OF", help="Keep the largest of every chunk instead, as "
                                                                      "64/4096.")] = "",
         codec: Annotated[str, typer.Option(help="How values are written: fp16 (default), int8, sign, …")] = "",
         force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False) -> None:
    """Write the difference of a tuned model and its base as a task vector. It is signed where there is a home."""
    from hinet_node.cli import base_choice, staging, tau_signing
    from hinet_node.errors import UsageError

    if density is not None and chunked:
        raise UsageError("--density and --chunked are two ways to cut", next_step="give one of them")
    tau_signing.require_usable_key()
    args = {"tuned": base_choice.model_path(tuned), "base": base_choice.model_path(base), "density": density,
            "chunked": _chunked(chunked), "codec": codec or None}
    with staging.staged(Path(out), replace=force) as place:
        found = worker_call.call("tau.make", {**args, "out": str(place)}, "making the task vector")
        signed = tau_signing.sign(place)
    data = {**found, **signed, "path": str(Path(out).absolute())}
    output.emit("hinet.tau-make/1", data, lambda: _made(data))


def apply(tau: Annotated[str, typer.Argument(metavar="F.tau", help="A task vector.")],
          out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="The folder to make.")],
          base: Annotated[str, typer.Option("--base", help=BASE_HELP + " Default: the one in this home.")] = "",
          dtype: Annotated[str, typer.Option(help="float32 or bf16; default: the base's.")] = "") -> None:
    """Add a task vector to its base: a whole model folder, with the base's settings and tokenizer."""
    from hinet_node.cli import staging

    path = str(Path(tau).absolute())
    with staging.staged(Path(out), folder=True) as place:
        found = worker_call.call("tau.apply", {"tau": path, "base": base_of(path, base), "out": str(place),
                                               "dtype": dtype or None}, "making the model")
    data = {**found, "dir": str(Path(out).absolute())}
    output.emit("hinet.tau-apply/1", data, lambda: _applied(data))


def base_of(tau: str, given: str) -> str:
    """The path of the base that was given, or of the one in this home that a task vector belongs to.

    Errors: `UsageError` when it is not here; those of a file that is no task vector.
    """
    from hinet_node.cli import base_choice
    from hinet_node.errors import UsageError
    from hinet_protocol import taskvectors

    if given:
        return base_choice.model_path(given)
    with Path(tau).open("rb") as file:
        digest = taskvectors.read_header(file, Path(tau).stat().st_size).base.hex()
    found = base_choice.installed_path(digest)
    if found is None:
        raise UsageError(f"{Path(tau).name} belongs to base {digest[:12]}, which is not in this home",
                         next_step="say where it is: --base PATH", code="E_NO_SUCH_BASE")
    return found


def _chunked(text: str) -> list[int] | None:
    if not text:
        return None
    keep, _, of = text.partition("/")
    if keep.isascii() and keep.isdigit() and of.isascii() and of.isdigit() and len(text) < 20:
        return [int(keep), int(of)]
    from hinet_node.errors import UsageError

    raise UsageError(f"--chunked {text!r} is not understood", next_step="give how many of how many: --chunked 64/4096")


def _made(data: dict[str, Any]) -> list[str]:
    from hinet_node.cli import tau_signing

    rows = [["base", str(data["base"])[:12]],
            ["kept", f"{data['kept']:,} of {data['parameters']:,} entries ({data['density']:.2%}), "
                     f"{data['energy_kept']:.1%} of the change"],
            ["moves the base by", f"{data['displacement']:.4g} (uncut {data['displacement_dense']:.4g})"],
            ["size", f"{output.size_text(data['bytes'])}, {data['bytes_per_parameter']:.4f} bytes per parameter"],
            ["signature", output.clean(tau_signing.signed_text(data))]]
    if data["left_out"]:
        rows.append(["left out", f"{len(data['left_out'])} tables that follow from the settings: "
                                 f"{output.clean(data['left_out'][0])}, …"])
    return [output.style(output.clean(data["path"]), "bold"), *output.table(rows, indent="  ")]


def _applied(data: dict[str, Any]) -> list[str]:
    lost = f", {data['rounded_away']:,} of them lost in bf16's rounding" if data["rounded_away"] else ""
    return [f"{output.clean(data['dir'])}: {data['tensors']} tensors in {data['dtype']}, "
            f"{output.size_text(data['bytes'])}", f"{data['changed']:,} entries changed in {data['changed_tensors']} "
            f"tensors{lost}", f"digest {data['digest']}", *(output.clean(note) for note in data["notes"])]
