"""The local API's verb vault.repair: what `vault verify` finds is put right. Leaves the work to `vault.repairing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hinet_node.api import Emit, Handler, whole_number_of
from hinet_node.errors import IntegrityError, UsageError
from hinet_node.local.vault_verbs import progress_report
from hinet_node.vault import Vault

TIMEOUT_S_MAX = 86_400


def vault_repair_verbs(vault: Vault) -> dict[str, Handler]:
    """The handlers, by verb."""

    async def repair(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        timeout_s = whole_number_of(args, "timeout_s", 60)
        if not 0 <= timeout_s <= TIMEOUT_S_MAX:
            raise UsageError(f"the time to wait is 0 to {TIMEOUT_S_MAX} seconds", next_step="for example --timeout 60")
        report = await vault.repair(verify=args.get("verify") is not False, deep=args.get("deep") is True,
                                    timeout_s=timeout_s, on_progress=lambda done: emit(progress_report(done)))
        return {**report.as_json(), "asked_siblings": vault.replicator is not None}

    return {"vault.repair": repair}


def repair_error(report: Mapping[str, Any]) -> IntegrityError | None:
    """What `vault repair` says when something is still not whole; None when all is."""
    if report["ok"]:
        return None
    left = [item for item in report["items"] if not item["whole"]]
    files = len(report["files_unreadable"])
    what = f"{len(left)} {'thing is' if len(left) == 1 else 'things are'} still not whole" if left else ""
    if files:
        what += f"{', ' if what else ''}{files} {'file' if files == 1 else 'files'} can't be read whole"
    if not report["asked_siblings"]:
        next_step = "start the agent, so that siblings are asked: hinet-node up   then: hinet-node vault repair"
    elif any(item["may_have"] for item in left):
        next_step = "bring a device that may have it into reach, then again: hinet-node vault repair"
    else:
        next_step = ("no device is known that has it: put the files in again; to stop waiting for the old content: "
                     "hinet-node vault history --heads   then: hinet-node vault accept-older --head HASH")
    return IntegrityError(what or "something was lost", code="E_VAULT_DAMAGED", next_step=next_step)
