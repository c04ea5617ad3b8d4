"""`hinet-node doctor`: numbered checks of this machine, each with its remedy. Works without an agent and before `init`.

Exit code 1 when a check failed, 0 otherwise: a warning is something to know, and what could be checked was checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet_node.cli import context, output

if TYPE_CHECKING:
    from hinet_node.local.doctor.facts import Facts

STYLES = {"ok": ("green",), "warn": ("yellow",), "fail": ("red", "bold"), "skip": ("dim",)}
FILES_ASKED_MAX = 20_000
INDENT = 24


def doctor(fix: Annotated[bool, typer.Option("--fix", help="Put right what is safe: modes, what a dead agent left "
                                                           "behind.")] = False,
           bundle: Annotated[str, typer.Option(metavar="FILE", help="Also write a tar.gz for a bug report, without "
                                                                    "secrets.")] = "",
           with_names: Annotated[bool, typer.Option("--with-names", help="Leave the names of devices in the "
                                                                         "bundle.")] = False,
           no_network: Annotated[bool, typer.Option("--no-network", help="Send and dial nothing.")] = False) -> int:
    """Check this machine, and say how to mend what is wrong."""
    from hinet_node.cli.service_cmd import this_service
    from hinet_node.cli.version_cmd import installed_version
    from hinet_node.local.doctor.gather import gather
    from hinet_node.local.doctor.mend import mend

    folder, version = context.home_path(), installed_version()
    fixed = mend(gather(folder, this_service(), version, network=False)) if fix else []
    facts = gather(folder, this_service(), version, network=not no_network)
    rows = judged(facts)
    written = _write_bundle(Path(bundle), facts, rows, with_names=with_names) if bundle else []
    counts = {state: sum(row["state"] == state for row in rows) for state in STYLES}
    data = {"ok": not counts["fail"], "counts": counts, "checks": rows, "fixed": fixed, "bundle": bundle or None,
            "bundled": written}
    output.emit("hinet.doctor/1", data, lambda: _screen(data))
    return 1 if counts["fail"] else 0


def judged(facts: Facts) -> list[dict[str, Any]]:
    """All checks, in order."""
    from hinet_node.local.doctor.checks import CHECKS

    rows = []
    for check in CHECKS:
        finding = check.judge(facts)
        rows.append({"number": check.number, "name": check.name, "state": finding.state, "said": finding.said,
                     "fix": finding.fix.replace("hinet-node ", context.typed("")) or None, "fixable": finding.fixable})
    return rows


def _screen(data: dict[str, Any]) -> Iterable[str]:
    import shutil
    import sys
    import textwrap

    columns = shutil.get_terminal_size().columns if output.at_terminal(sys.stdout) else 10_000
    for line in data["fixed"]:
        yield output.clean(f"fixed: {line}")
    for row in data["checks"]:
        state = output.style(f"{row['state']:<4}", *STYLES[row["state"]])
        said = textwrap.wrap(output.clean_line(row["said"]), max(40, columns - INDENT)) or [""]
        yield f"{row['number']:>2}  {state}  {row['name']:<12}  {said[0]}"
        yield from (" " * INDENT + line for line in said[1:])
        if row["fix"] and row["state"] in ("warn", "fail"):
            hint = "   (or: doctor --fix)" if row["fixable"] else ""
            yield " " * INDENT + f"fix: {output.clean_line(row['fix'])}{hint}"  # whole, to be copied
    counts = data["counts"]
    yield ""
    yield (f"{counts['ok']} well, {counts['warn']} {'warning' if counts['warn'] == 1 else 'warnings'}, "
           f"{counts['fail']} failed, {counts['skip']} not checked")
    if data["bundle"]:
        yield output.clean(f"{data['bundle']} holds {', '.join(data['bundled'])}; look through it before you send it.")


def _write_bundle(target: Path, facts: Facts, rows: list[dict[str, Any]], *, with_names: bool) -> list[str]:
    from hinet_node.cli.agent_call import connect
    from hinet_node.errors import NodeError
    from hinet_node.local.doctor import bundle

    status: dict[str, Any] | None = None
    files: list[str] = []
    try:
        with connect() as client:
            status = client.call("status", timeout_s=5.0)
            more = True
            while more and len(files) < FILES_ASKED_MAX:
                page = client.call("vault.ls", {"all": True, "after": files[-1] if files else ""}, timeout_s=30.0)
                files += [item["name"] for item in page["items"]]
                more = page["more"] and bool(page["items"])
    except NodeError:
        pass  # the findings say what is wrong with the agent; the rules of redaction need no list of files
    if status is None and facts.initialised and not facts.identity_problem:
        from hinet_node.cli.local_work import local_status

        status = local_status()
    return bundle.write(target, facts, rows, status, file_names=files, with_names=with_names)
