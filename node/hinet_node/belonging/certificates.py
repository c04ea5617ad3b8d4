"""How long certificates last, whose are due, and what the owner is told of it. SPEC sections 3.4 and 3.7.

A certificate that ran out makes its device a keeper on every device whose clock says so; the chain does not change. So
admins renew in time those that they meet. Making the entries is left to `membership`, the waiting to `renewal`.
"""

from __future__ import annotations

from collections.abc import Collection

from hinet_protocol.chain import Chain, Device

CERTIFICATE_LIFETIME_S = 180 * 86_400
RENEWAL_WINDOW_S = 30 * 86_400
CLOCK_MIN_UNIX_S = 1_735_689_600
"""2025: a clock before it was never set, and would make certificates that ran out long ago."""


def expiry_of(role: str, now_s: int) -> int:
    """When a certificate that is made now ends; 0 for never. A keeper's does not: it has no rights to lose."""
    return 0 if role == "keeper" else max(now_s, CLOCK_MIN_UNIX_S) + CERTIFICATE_LIFETIME_S


def ends_soon(device: Device, now_s: int) -> bool:
    """Its certificate has ended, or will within the window."""
    return device.expires_s != 0 and device.expires_s - now_s <= RENEWAL_WINDOW_S


def due(chain: Chain, own: bytes, met: Collection[bytes], now_s: int) -> list[Device]:
    """The devices whose certificates this one should renew now, seniors first: live ones that it has a session with,
    and itself when it is the only live admin.

    An admin whose own certificate has ended renews nobody, except when that is so for every admin of the household:
    else machines that were all switched off for long could only be brought back with the words.
    """
    admins = [device for device in chain.members() if device.role == "admin"]
    me = next((device for device in admins if device.public == own), None)
    if me is None or (me.expired(now_s) and not all(device.expired(now_s) for device in admins)):
        return []
    may = set(met) | ({own} if len(admins) == 1 else set())
    return [device for device in chain.members() if device.public in may and ends_soon(device, now_s)]


def certificate_warnings(chain: Chain, own: bytes, now_s: int) -> list[dict[str, str]]:
    """For `status`: this device's certificate, and those of others that have ended or will soon."""
    found = []
    admins = [device for device in chain.members() if device.role == "admin"]
    for device in chain.members():
        if not ends_soon(device, now_s):
            continue
        days = (device.expires_s - now_s) // 86_400
        mine, alone = device.public == own, [device] == admins
        whose = "this device's certificate" if mine else f"the certificate of {device.name}"
        what = (f"{whose} has ended, so it counts as a keeper" if device.expired(now_s)
                else f"{whose} ends in {days} day{'' if days == 1 else 's'}")
        others = ", ".join(admin.name for admin in admins if admin is not device)
        if alone and mine:
            next_step = "it renews itself while the agent runs: hinet-node run"
        elif mine:
            next_step = f"it is renewed when it meets an admin ({others}); start the agents on both: hinet-node run"
        else:
            next_step = f"start {device.name} where an admin ({others or device.name}) can reach it: hinet-node run"
        found.append({"code": "E_CERTIFICATE", "what": what, "next": next_step})
    return found
