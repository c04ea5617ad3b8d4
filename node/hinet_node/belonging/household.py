"""The household in plain values, for `status` and `devices`; with or without a running agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hinet_node.belonging.awareness import unaware_of
from hinet_node.belonging.membership import Membership
from hinet_node.errors import NotAuthorised, UsageError
from hinet_node.sessions.seen import Sighting
from hinet_protocol.chain import Chain, Device
from hinet_protocol.identity import identity_text

CERTIFICATE_WARN_S = 30 * 86_400
NEVER = Sighting(0)


def describe_household(membership: Membership, seen: Mapping[bytes, Sighting]) -> dict[str, Any]:
    """`identity`, this `device` and all `devices`, seniors first; state is this, away, revoked or void.

    `seen` is what is known of each device's last session; `unaware_of` names the revoked devices of which a device has
    not said that it knows.
    """
    chain = membership.chain()
    own = membership.device
    names = {device.public: f"the former key of {device.name}" if device.replaced_by else device.name
             for device in chain.devices()}
    unaware = unaware_of(chain, {public: one.heads for public, one in seen.items()}, membership.device_public)
    return {
        "identity": {"id": identity_text(chain.identity_id), "height": chain.height, "heads": len(chain.heads)},
        "device": {**_plain(own), "role": membership.role},
        "devices": [{**_device(membership, device, seen.get(device.public, NEVER)),
                     "unaware_of": [names[public] for public in unaware.get(device.public, ())]}
                    for device in chain.devices()],
    }


def household_warnings(membership: Membership, household: Mapping[str, Any], now_s: float) -> list[dict[str, str]]:
    """What the owner should know of who belongs: certificates that end, certificates that fell, who does not know of a
    revocation yet. `household` is from `describe_household`."""
    found = []
    devices = household["devices"]
    if not membership.device.live:
        found.append(revoked_warning("this device was put out of the household"))
    admins = [device for device in devices if device["role"] == "admin" and device["state"] not in ("revoked", "void")]
    for device in devices:
        if device["state"] == "void":
            found.append(warning("E_VOID", f"the certificate of {device['name']} does not count any more: whoever "
                                 "signed it had been revoked", "let it join again: hinet-node invite"))
        elif device["state"] != "revoked" and device["expires_unix_s"]:
            found += _certificate_warning(device, device["expires_unix_s"] - now_s, alone=admins == [device])
    unaware: dict[str, list[str]] = {}
    for device in devices:
        for name in device["unaware_of"]:
            unaware.setdefault(name, []).append(device["name"])
    for name, those in unaware.items():
        verb = "does" if len(those) == 1 else "do"
        found.append(warning("E_NOT_TOLD", f"{', '.join(those)} {verb} not know yet, or did not say so, that {name} is "
                             "revoked", f"start the agent there, in reach of {membership.name} or of another device "
                             "that knows"))
    return found


def revoked_warning(what: str) -> dict[str, str]:
    """This device does not belong any more, or so others say."""
    return warning("E_REVOKED", what, "join again as a new device: hinet-node --home PATH join CODE")


def _certificate_warning(device: Mapping[str, Any], left_s: float, *, alone: bool = False) -> list[dict[str, str]]:
    """`alone`: it is the only admin, which renews itself."""
    whose = "this device's certificate" if device["state"] == "this" else f"the certificate of {device['name']}"
    remedy = ("run its agent, which renews it: hinet-node up" if alone else
              "run its agent where an admin device is in reach, which renews it: hinet-node up")
    if left_s <= 0:
        return [warning("E_CERTIFICATE_EXPIRED", f"{whose} has run out: it has the rights of a keeper now", remedy)]
    if left_s <= CERTIFICATE_WARN_S:
        days = int(left_s // 86_400)
        when = "today" if days == 0 else f"in {days} {'day' if days == 1 else 'days'}"
        return [warning("E_CERTIFICATE_ENDS", f"{whose} ends {when}", remedy)]
    return []


def warning(code: str, what: str, next_step: str) -> dict[str, str]:
    """One warning as `status` carries it."""
    return {"code": code, "what": what, "next": next_step}


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

    Errors: `NotAuthorised` for the last admin, for the device itself, and on a device that is no admin.
    """
    rest = [other for other in membership.chain().members() if other.public != device.public]
    itself = "a device can't revoke itself, and " if device.public == membership.device_public else ""
    if device.role == "admin" and not any(other.role == "admin" for other in rest):
        raise NotAuthorised(f"{itself}{device.name} is the last admin: without it nobody could let a device in or put "
                            "one out", code="E_LAST_ADMIN",
                            next_step="make another admin first: hinet-node invite --role admin   or use the 24 words: "
                                      f"hinet-node revoke {device.name} --words   (or --words-file FILE)")
    if itself:
        raise NotAuthorised("a device can't revoke itself", code="E_SELF_REVOKE",
                            next_step=f"do it on another admin device: hinet-node revoke {device.name}")
    membership.require_admin("revoke a device")
    return {"device": _plain(device), "remaining": [other.name for other in rest],
            "keeps": "what it already read; only what is added from now on is closed to it"}


def _plain(device: Device) -> dict[str, Any]:
    return {"name": device.name, "role": device.role, "tier": device.tier, "fingerprint": device.fingerprint,
            "public": device.public.hex()}


def _device(membership: Membership, device: Device, seen: Sighting) -> dict[str, Any]:
    if device.revoked:
        state = "revoked"
    elif device.void:
        state = "void"
    else:
        state = "this" if device.public == membership.device_public else "away"
    return {**_plain(device), "state": state, "added_unix_s": device.added_s,
            "expires_unix_s": device.expires_s or None, "revoke_reason": device.revoke_reason, "via": None,
            "relay": None, "clock_offset_s": None, "behind": None, **last_known(seen)}


def last_known(seen: Sighting) -> dict[str, Any]:
    """What a device's last or present session tells of it; None and [] where it was never met."""
    return {"last_seen_unix_s": seen.time_s or None, "address": seen.address or None, "version": seen.version or None,
            "backends": list(seen.backends), "memory_bytes": seen.memory_bytes or None,
            "bases": [digest.hex() for digest in seen.bases]}
