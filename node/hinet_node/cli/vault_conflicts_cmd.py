"""`hinet-node vault conflicts [settle NAME --keep …]`: files that were edited on two devices at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from hinet_node.cli import context, output, root, vault_local
from hinet_node.cli.vault_past_cmd import ID_DIGITS, quoted

app = root.group("List and settle edits that two devices made at once.")


@app.callback(invoke_without_command=True)
def conflicts(ctx: typer.Context) -> None:
    """List files that were edited on two devices at once, and settle which version stays."""
    if ctx.invoked_subcommand is None:
        contested: list[dict[str, Any]] = []
        with vault_local.calls() as call:
            after, more = "", True
            while more:
                page = call("vault.conflicts", {"after": after})
                contested += page["conflicts"]
                more = page["more"] and bool(page["conflicts"])
                after = page["conflicts"][-1]["name"] if page["conflicts"] else ""
        output.emit("hinet.vault-conflicts/1", {"conflicts": contested}, lambda: _listed(contested))


@app.command()
def settle(name: Annotated[str, typer.Argument(help="The file's name, or that of one of its versions.")],
           keep: Annotated[str, typer.Option("--keep", metavar="VERSION", help="The id of a version; `mine`: this "
                                                                              "device's; `newest-shown`: the one under "
                                                                              "the file's own name; `both`: each under "
                                                                              "a name of its own.")]) -> None:
    """Settle a conflict on every device. What does not stay can be put back from the history."""
    done = vault_local.call("vault.settle", {"name": name, "keep": keep}, label="settling")
    names = ", ".join(output.clean_line(one) for one in done["names"])
    output.emit("hinet.vault-settle/1", done, [f"Settled: {names}" if names else "Settled: the file stays removed."])


def _listed(contested: list[dict[str, Any]]) -> Iterable[str]:
    if not contested:
        yield "No file has two versions: nothing is contested."
        return
    for one in contested:
        yield output.style(output.clean_line(one["name"]), "bold")
        yield from output.table([[
            output.style(row["id"][:ID_DIGITS], "cyan"), _writer(row), output.time_text(row["time"]),
            "" if row["deleted"] else output.size_text(row["size"]), _difference(row, at), _where(row)]
            for at, row in enumerate(one["versions"])], indent="  ")
    yield "  settle one: " + context.typed(f"vault conflicts settle {quoted(contested[0]['name'])} --keep "
                                          f"{contested[0]['versions'][0]['id'][:ID_DIGITS]}|mine|newest-shown|both")


def _writer(row: dict[str, Any]) -> str:
    return output.clean(row["device"]) + (" (this device)" if row["mine"] else "")


def _difference(row: dict[str, Any], at: int) -> str:
    if at == 0:
        return ""
    size, seconds = row["size_difference"], row["time_difference_s"]
    larger = "" if row["deleted"] else ("as long" if not size else
                                        f"{output.size_text(abs(size))} {'longer' if size > 0 else 'shorter'}")
    later = "" if not seconds else f"{_span(abs(seconds))} {'later' if seconds > 0 else 'earlier'}"
    return ", ".join(part for part in (larger, later) if part)


def _span(seconds: int) -> str:
    for limit, unit_s, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds // unit_s} {unit}"
    return f"{seconds // 86_400} days"


def _where(row: dict[str, Any]) -> str:
    if row["deleted"]:
        return output.style("removed it", "red")
    return output.clean_line(row["shown_as"] or "")
