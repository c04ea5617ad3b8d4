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

