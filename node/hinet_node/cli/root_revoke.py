"""`hinet-node revoke DEVICE` signed by the root: for the last admin, and where no admin is at hand.

The words stand above every admin, so any home of the household will do, a keeper's too. What is said and asked is
`revoke_cmd`'s; what is signed is `belonging.recovery`'s.
"""

from __future__ import annotations

import time
from typing import Any

from hinet_node.cli import context, root_key

CONFIRM_S = 3.0
CONFIRM_POLL_S = 0.1
KEEPS = "what it already read; only what is added from now on is closed to it"


def plan(text: str) -> dict[str, Any]:
    """What revoking would do, as the agent's `device.revoke` says it. Errors: `UsageError` for no or many devices."""
    from hinet_node.belonging.household import find_device
    from hinet_node.cli.local_work import load_membership
    from hinet_node.real.disk import RealDisk
    from hinet_node.sessions import seen

    chain = load_membership().chain()
    device = find_device(chain, text)
    rest = [other for other in chain.members() if other.public != device.public]
    met = seen.read(RealDisk(context.home_path())).get(device.public)
    return {"done": False, "keeps": KEEPS, "remaining": [other.name for other in rest],
            "admins_left": [other.name for other in rest if other.role == "admin"], "away": [],
            "last_seen_unix_s": None if met is None else met.time_s, "device": {
                "name": device.name, "role": device.role, "tier": device.tier, "fingerprint": device.fingerprint,
                "public": device.public.hex()}}


def carry_out(wanted: dict[str, Any], reason: str, words_file: str, sealed_root: str, passphrase_file: str,
              ) -> dict[str, Any]:
    """Revoke the device of a plan. Errors: `NotAuthorised` for other words; those of `root_entries.put_in`."""
    from hinet_node.belonging import recovery
    from hinet_node.cli import root_entries
    from hinet_node.cli.local_work import load_membership
    from hinet_node.real.system import SystemClock, SystemRandomness

    root = root_key.read_root(words_file, sealed_root, passphrase_file)
    chain = load_membership().chain()
    device = chain.device(bytes.fromhex(wanted["device"]["public"]))
    assert device is not None, "the plan was made from this chain"
    after = recovery.revoked(chain, root, device, reason, SystemRandomness(), int(SystemClock().now_unix_s()))
    by_agent = root_entries.put_in(chain, after)
    told, not_told = _who_knows(device.name, patience_s=CONFIRM_S if by_agent else 0.0)
    return {**wanted, "done": True, "told": told, "not_told": not_told}


def _who_knows(name: str, *, patience_s: float) -> tuple[list[str], list[str]]:
    """The other devices that have said that they know of the revocation, and those that have not. Those in reach get a
    moment to say so."""
    from hinet_node.cli.devices_cmd import known_devices

    deadline_s = time.monotonic() + patience_s
    while True:
        others = [device for device in known_devices() if device["state"] in ("connected", "away")]
        late = [device for device in others if name in device["unaware_of"]]
        if time.monotonic() >= deadline_s or all(device["state"] == "away" for device in late):
            return [device["name"] for device in others if device not in late], [device["name"] for device in late]
        time.sleep(CONFIRM_POLL_S)
