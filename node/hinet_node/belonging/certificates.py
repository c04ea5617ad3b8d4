"""How long certificates last, and which of them a device should renew now. SPEC section 3.4.

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
