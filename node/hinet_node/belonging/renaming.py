"""Giving a device another name: a new certificate for the same keys, signed by an admin that is not the device itself.

What the chain allows is `hinet_protocol.chain`'s; here are the checks that can be said better before it is asked.
"""

from __future__ import annotations

from hinet_node.belonging.membership import Membership
from hinet_node.errors import ConflictError, NotAuthorised, UsageError
from hinet_protocol import limits
from hinet_protocol.chain import Device, make_device_rotate


def rename(membership: Membership, device: Device, name: str, now_s: float) -> None:
    """The device is called `name` from now on, everywhere. Durable when this returns; the same name again is no error.

    Errors: `NotAuthorised` on a device that is no admin, and for itself while there is another admin; `ConflictError`
    when another device has the name; `UsageError` for what can't be a name.
    """
    membership.require_admin("rename a device")
    _check_name(name)
    chain = membership.chain()
    if device.name == name:
        return
    others = [one.name for one in chain.members() if one.role == "admin" and one.public != membership.device_public]
    if device.public == membership.device_public and others:
        raise NotAuthorised("a device can't rename itself while there is another admin", code="E_SELF_RENAME",
                            next_step=f"do it on {', '.join(others)}: hinet-node devices rename {device.name} NEW")
    holder = chain.device_named(name)
    if holder is not None and holder.public != device.public:
        raise ConflictError(f"another device is called {holder.name} already", code="E_NAME_TAKEN",
                            next_step="choose another name; who is who: hinet-node devices")
    membership.take_in([make_device_rotate(chain, membership.keys, device.public, time_s=int(now_s),
                                           expires_s=device.expires_s, name=name)])


def _check_name(name: str) -> None:
    if not 0 < len(name.encode("utf-8", "replace")) <= limits.name_bytes_max or not name.isprintable():
        raise UsageError(f"{name[:80]!r} can't be the name of a device", code="E_NAME",
                         next_step=f"1 to {limits.name_bytes_max} bytes of printable text")
