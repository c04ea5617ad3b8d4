"""`hinet-node vault verify|repair`: what is damaged in the vault on this device, and putting it right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from hinet_node.cli import context, output, vault_local

FILES_SHOWN = 5
ROWS_SHOWN = 100


def verify(deep: Annotated[bool, typer.Option("--deep", help="Also decrypt every chunk and file.")] = False) -> int:
    """Check everything on disk. Works on keepers, and without a running agent."""
    from hinet_node.local.vault_verbs import damage_error

    report = vault_local.call("vault.verify", {"deep": deep}, label="verifying")
    report.pop("schema", None)
    output.emit("hinet.vault-verify/1", report, lambda: _verified(report))
    return _ended(damage_error(report))


def repair(timeout: Annotated[int, typer.Option(metavar="SECONDS", help="How long to wait for siblings while nothing "
                                                                       "comes.")] = 60,
           deep: Annotated[bool, typer.Option("--deep", help="Verify as `vault verify --deep` does first.")] = False,
           quick: Annotated[bool, typer.Option("--quick", help="Do not verify first: mend what is known.")] = False,
           ) -> int:
    """Put right what verify finds: fetch it from siblings, save what is left."""
    from hinet_node.local.vault_repair_verbs import repair_error

    report = vault_local.call("vault.repair", {"deep": deep, "verify": not quick, "timeout_s": timeout},
                              label="repairing")
    report.pop("schema", None)
    output.emit("hinet.vault-repair/1", report, lambda: _repaired(report))
    return _ended(repair_error(report))


def _ended(failure: Any) -> int:
    """The exit code; for a person the error's words too. With --json the report has said it all."""
    if failure is None:
        return 0
    if not context.current.json:
        raise failure
    return int(failure.exit_code)


def _verified(report: Mapping[str, Any]) -> Iterable[str]:
    for fault in report["faults"][:ROWS_SHOWN]:
        colour = "yellow" if fault["state"] == "rebuilt" else "red"
        yield f"{output.style(fault['state'], colour)}: {output.clean_line(fault['what'])}{_touches(fault)}"
    yield from _more(report["faults_count"] - ROWS_SHOWN)
    yield from _unreadable(report)
    what = f"{_counted(report['packs'], 'pack')} ({output.size_text(report['packs_bytes'])})"
    what += f", {_counted(report['chunks'], 'chunk')}" if report["deep"] else ""
    yield f"Checked: {what}, {_counted(report['heads'], 'head')}. {'All is whole.' if report['ok'] else ''}".rstrip()


def _repaired(report: Mapping[str, Any]) -> Iterable[str]:
    for item in report["items"][:ROWS_SHOWN]:
        line = output.style(item["outcome"], "green" if item["whole"] else "red")
        yield f"{line}: {output.clean_line(item['what'])}{_touches(item)}"
        if item["may_have"]:
            yield f"  may have it: {output.clean_line(', '.join(item['may_have']))}"
    yield from _more(len(report["items"]) - ROWS_SHOWN)
    yield from _unreadable(report)
    if report["ok"]:
        yield "Everything is whole." if report["items"] else "Nothing is damaged, and nothing is missing."


def _touches(row: Mapping[str, Any]) -> str:
    if not row["files"]:
        return ""
    shown = ", ".join(output.clean_line(name) for name in row["files"][:FILES_SHOWN])
    more = row["files_count"] - FILES_SHOWN
    return f" It touches {shown}{f' and {more} more' if more > 0 else ''}."


def _unreadable(report: Mapping[str, Any]) -> Iterable[str]:
    names = report["files_unreadable"]
    for name in names[:ROWS_SHOWN]:
        yield f"{output.style('not whole', 'red')}: {output.clean_line(name)}"
    yield from _more(len(names) - ROWS_SHOWN)


def _counted(count: int, what: str) -> str:
    return f"{count} {what if count == 1 else what + 's'}"


def _more(count: int) -> Iterable[str]:
    if count > 0:
        yield f"  and {count} more; all of them: --json"
