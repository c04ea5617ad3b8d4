"""The household in plain values, for `status` and `devices`; with or without a running agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hinet_node.belonging.membership import Membership
from hinet_node.errors import NotAuthorised, UsageError
from hinet_protocol.chain import Chain, Device
from hinet_protocol.identity import identity_text


def describe_household(membership: Membership, last_seen: Mapping[bytes, int]) -> dict[str, Any]:
    """`identity`, this `device` and all `devices`, seniors first; state is this, away or revoked."""
    chain = membership.chain()
    own = membership.device
    return {
        "identity": {"id": identity_text(chain.identity_id), "height": chain.height, "heads": len(chain.heads)},
        "device": {**_plain(own), "role": membership.role},
        "devices": [_device(membership, device, last_seen) for device in chain.devices()],
    }


def find_device(chain: Chain, text: str, *, live_only: bool = True) -> Device:
    """The device of this name, fingerprint or key prefix (4 characters at least).

    Errors: `UsageError` when none or more than one fits.
    """
    pool = [device for device in chain.devices() if device.live or not live_only]
    wanted = text.casefold()
    exact = [device for device in pool if device.name.casefold() == wanted]
    fits = exact or [device for device in pool if device.fingerprint.casefold() == wanted] or [
        device for device in pool if len(wanted) >= 4 and (device.device_id.startswith(wanted)
                                                           or device.public.hex().startswith(wanted))]
    if len(fits) == 1:
        return fits[0]
    what = f"more than one device fits {text!r}" if fits else f"the household has no device {text!r}"
    raise UsageError(what, next_step="see their names: hinet-node devices", code="E_NO_SUCH_DEVICE")


def revocation_consequences(membership: Membership, device: Device) -> dict[str, Any]:
    """What revoking would do, and the checks that come before it.

    Errors: `NotAuthorised` on a device that is no admin, for the device itself, and for the last admin.
    """
    membership.require_admin("revoke a device")
    if device.public == membership.device_public:
        raise NotAuthorised("a device can't revoke itself", code="E_SELF_REVOKE",
                            next_step=f"do it on another admin device: hinet-node revoke {device.name}")
    rest = [other for other in membership.chain().members() if other.public != device.public]
    return {"device": _plain(device), "remaining": [other.name for other in rest],
            "keeps": "what it already read; only what is added from now on is closed to it"}


def _plain(device: Device) -> dict[str, Any]:
    return {"name": device.name, "role": device.role, "tier": device.tier, "fingerprint": device.fingerprint,
            "public": device.public.hex()}


def _device(membership: Membership, device: Device, last_seen: Mapping[bytes, int]) -> dict[str, Any]:
    if not device.live:
        state = "revoked"
    else:
        state = "this" if device.public == membership.device_public else "away"
    return {**_plain(device), "state": state, "added_unix_s": device.added_s,
            "expires_unix_s": device.expires_s or None, "last_seen_unix_s": last_seen.get(device.public),
            "address": None, "version": None, "backends": [], "memory_bytes": None, "bases": [],
            "revoke_reason": device.revoke_reason}
