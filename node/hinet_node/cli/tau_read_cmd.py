"""`hinet-node tau info|diff|verify`: what task vectors say, how two differ, and whether one is whole."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet_node.cli import output, worker_call

BAR_COLUMNS = 24
NAMES_SHOWN = 8
LAYERS_SHOWN = 120


def add_to(app: typer.Typer) -> None:
    """Make these commands part of `tau`."""
    for command in (info, diff, verify):
        app.command()(command)


def info(tau: Annotated[str, typer.Argument(metavar="F.tau", help="A task vector.")]) -> None:
    """Show what a task vector holds: base, density, displacement by layer, bytes, passport, and who signed it."""
    from hinet_node.cli import tau_signing

    path = Path(tau).absolute()
    found = {**worker_call.call("tau.info", {"tau": str(path)}), **tau_signing.signer_of(path)}
    output.emit("hinet.tau-info/1", found, lambda: _described(found))


def diff(first: Annotated[str, typer.Argument(metavar="A", help="A .tau, or a model.")],
         second: Annotated[str, typer.Argument(metavar="B", help="Another one.")]) -> None:
    """Compare two task vectors of one base, or two models: what differs is named, nothing is left out in silence."""
    from hinet_node.cli import base_choice

    args = {"first": base_choice.model_path(first), "second": base_choice.model_path(second)}
    found = worker_call.call("tau.diff", args, "comparing")
    if found["kind"] == "models":
        output.emit("hinet.tau-diff-models/1", found, lambda: _models(found))
    else:
        output.emit("hinet.tau-diff/1", found, lambda: _vectors(found))


def verify(tau: Annotated[str, typer.Argument(metavar="F.tau", help="A task vector.")],
           base: Annotated[str, typer.Option("--base", help="Check it against this base too.")] = ""
           ) -> None:
    """Read every block and check digests, signature, displacement and, with --base, names and shapes."""
    from hinet_node.cli import base_choice, tau_signing

    path = Path(tau).absolute()
    args = {"tau": str(path), "base": base_choice.model_path(base) if base else None}
    found = {**worker_call.call("tau.verify", args, "verifying"), **tau_signing.signer_of(path)}
    output.emit("hinet.tau-verify/1", found, lambda: _verified(found))
    if not found["ok"]:
        raise typer.Exit(7)


def _described(found: Mapping[str, Any]) -> list[str]:
    from hinet_node.cli import tau_signing

    codecs = ", ".join(f"{codec} in {count} tensors" for codec, count in found["codecs"].items())
    rows = [["base", found["base"]],
            ["kept", f"{found['kept']:,} of {found['entries']:,} entries ({found['density']:.3%}), "
                     f"{_chosen(found['selection'])}"],
            ["values", output.clean(codecs)],
            ["size", f"{output.size_text(found['bytes'])}: {found['bytes_per_parameter']:.4f} bytes per parameter, "
                     f"{found['bytes_per_kept']:.3f} per kept entry"],
            ["displacement", f"{found['displacement']:.6g}"],
            ["passport", _text(found["passport"]) if found["passport"] else "empty"],
            ["signature", output.clean(tau_signing.signed_text(dict(found)))]]
    return [*output.table(rows), "", *layer_table(found["layers"], "displacement", "density", "kept")]


def _chosen(selection: Mapping[str, Any]) -> str:
    if selection["kind"] == "chunk":
        return f"the {selection.get('keep')} largest of every {selection.get('chunk')}"
    texts = {"threshold": "the largest of all", "all": "all there are", "given": "chosen by whoever made it"}
    return texts.get(str(selection["kind"]), "chosen in a way that is not known here")


def layer_table(layers: Sequence[Mapping[str, Any]], bar: str, *others: str) -> list[str]:
    """A row for each layer: one figure, with a bar for a person at a terminal, and others beside it."""
    most = max((layer[bar] or 0 for layer in layers), default=0) or 1
    drawn = output.at_terminal(sys.stdout)
    rows = []
    for layer in layers[:LAYERS_SHOWN]:
        length = max(0.0, (layer[bar] or 0) / most) * BAR_COLUMNS
        cells = [output.clean(str(layer["layer"])), figure(bar, layer[bar])]
        cells += ["█" * int(length) + ("▌" if length % 1 >= 0.5 else "")] if drawn else []
        rows.append([*cells, *(figure(name, layer[name]) for name in others)])
    heading = ["LAYER", heading_of(bar), *([""] if drawn else []), *map(heading_of, others)]
    more = [f"… and {len(layers) - LAYERS_SHOWN} more; --json has them all"] if len(layers) > LAYERS_SHOWN else []
    return [*output.table(rows, heading), *more]


def heading_of(name: str) -> str:
    """`displacement_difference` → `|A - B|`."""
    sides = {"displacement_first": "|A|", "displacement_second": "|B|", "displacement_difference": "|A - B|"}
    return sides.get(name, name.upper().replace("_", " "))


def figure(name: str, value: Any) -> str:
    """A figure as its name asks: shares in percent, counts with commas, norms in four digits."""
    if value is None:
        return "-"
    if name in ("density", "overlap", "sign_conflict", "relative"):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _vectors(found: Mapping[str, Any]) -> list[str]:
    rows = [["kept by A, by B, by both", f"{found['kept_first']:,}   {found['kept_second']:,}   {found['both']:,}"],
            ["overlap (both of either)", figure("overlap", found["overlap"])],
            ["signs in conflict there", figure("sign_conflict", found["sign_conflict"])],
            ["cosine", figure("cosine", found["cosine"])],
            ["displacement |A|, |B|, |A - B|", "   ".join(figure("", found[f"displacement_{side}"])
                                                     for side in ("first", "second", "difference"))]]
    lines = [f"base {found['base'][:12]}", *output.table(rows)]
    for side, other in (("first", "B"), ("second", "A")):
        if found[f"only_{side}_count"]:
            lines.append(f"{other} does not change {_list(found[f'only_{side}'], found[f'only_{side}_count'])}")
    return [*lines, "", *layer_table(found["layers"], "cosine", "overlap", "sign_conflict", "displacement_first",
                                     "displacement_second", "displacement_difference")]


def _models(found: Mapping[str, Any]) -> list[str]:
    lines = [output.clean(line) for line in found["lines"]]
    for side, label in enumerate(("the first", "the second")):
        if found["head_dropped"][side]:
            head = output.clean(found["head_dropped"][side])
            lines.append(f"{label} stores {head} though it is tied; it counts once")
        if found["left_out"][side]:
            lines.append(f"{label} stores {_list(found['left_out'][side], len(found['left_out'][side]))}, "
                         "which follows from its settings and is left out")
    for row in found["not_finite"][:NAMES_SHOWN]:
        lines.append(f"tensor {output.clean(row['tensor'])} is not compared: {row['first']} values of the first and "
                     f"{row['second']} of the second are not finite")
    if found["equal"]:
        return [*lines, f"equal: all {found['common_tensors']} tensors have the same values"]
    head = "the same tensors" if found["same_tensors"] else f"{found['common_tensors']} tensors in common"
    lines.append(f"{head}; {found['changed_tensors']} of them differ, in {found['changed']:,} of {found['entries']:,} "
                 f"entries; displacement {found['displacement']:.6g}")
    return [*lines, "", *layer_table(found["layers"], "displacement", "relative", "changed")]


def _verified(found: Mapping[str, Any]) -> list[str]:
    from hinet_node.cli import tau_signing

    lines = [f"{output.style('wrong', 'red')}  {output.clean(row['fault'])}" for row in found["faults"]]
    if found["faults_count"] > len(found["faults"]):
        lines.append(f"… and {found['faults_count'] - len(found['faults'])} more")
    against = f", against base {found['base'][:12]}" if found["base_checked"] else ""
    verdict = output.style("whole", "green") if found["ok"] else output.style(f"{found['faults_count']} faults", "red")
    return [*lines, f"{verdict}: {found['tensors']} tensors, {found['kept']:,} entries{against}",
            output.clean(tau_signing.signed_text(dict(found)))]


def _list(names: Sequence[str], count: int) -> str:
    shown = ", ".join(output.clean(name) for name in names[:NAMES_SHOWN])
    return f"{shown}{f' and {count - NAMES_SHOWN} more' if count > NAMES_SHOWN else ''}"


def _text(value: Mapping[str, Any]) -> str:
    """A map on one line."""
    return output.clean_line(", ".join(f"{key} {_short(item)}" for key, item in value.items()))


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        value = ", ".join(f"{key} {_short(item)}" for key, item in value.items())
    return output.shortened(str(value), 60)
