"""What commands can say and do without a running agent, from the home's files alone."""

from __future__ import annotations

from typing import Any

from hinet_node import home
from hinet_node.belonging.household import describe_household, household_warnings
from hinet_node.belonging.membership import Membership
from hinet_node.cli import context
from hinet_node.real.disk import RealDisk
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_node.sessions import seen


def load_membership() -> Membership:
    """This home's place in its household. Errors: `NotInitialised`, `NotAuthorised` (open key), `IntegrityError`."""
    folder = context.home_path()
    home.require_identity(folder)
    return Membership.load(RealDisk(folder), SystemRandomness(), SystemClock())


def local_status() -> dict[str, Any]:
    """The `status` of a home whose agent is not running: no sessions, and of the vault nothing."""
    membership = load_membership()
    household = describe_household(membership, seen.read(RealDisk(context.home_path())))
    return {"agent": {"running": False, "addresses": []}, **household, "vault": None, "invitations": [],
            "warnings": household_warnings(membership, household, SystemClock().now_unix_s())}


def verify_vault(*, deep: bool) -> dict[str, Any]:
    """Check the vault's packs under the home's lock. Errors: `ConflictError` when the home is in use."""
    import trio

    from hinet_node.cli import output
    from hinet_node.vault import Vault

    folder = context.home_path()
    home.require_identity(folder)
    with home.locked(folder), output.progress("verifying") as show:

        async def work() -> dict[str, Any]:
            disk, randomness, clock = RealDisk(folder), SystemRandomness(), SystemClock()
            vault = await Vault.open(disk, randomness, clock, Membership.load(disk, randomness, clock))
            try:
                report = await vault.verify(deep=deep, on_progress=lambda done: show(
                    {"step": done.bytes_done, "total": done.bytes_total or 0, "note": done.what}))
            finally:
                await vault.close()
            return report.as_json()

        return trio.run(work)
