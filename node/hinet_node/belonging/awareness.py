"""Who knows of a revocation, or of a replaced key: judged by the heads of the chain that each device last said it has.

A device that has a revocation in the past of its heads refuses the revoked one; until then it may still let it in.
Pure: leaves to `hinet_node.sessions.seen` what was said, and showing it to `household`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hinet_protocol.chain import Chain, Device, Entry

FOLLOWED_MAX = 64
"""Revoked devices that are followed up, the newest ones: a household of years does not slow `status` down."""


def unaware_of(chain: Chain, said: Mapping[bytes, Sequence[bytes]], own: bytes) -> dict[bytes, tuple[bytes, ...]]:
    """Live device -> the revoked devices (keys) of whose revocation it has not told us that it knows; this device
    (`own`) and those that know all are left out. `said` are the heads that each device last said it holds."""
    followed = _followed(chain)
    found = {}
    for device in chain.members():
        if device.public == own:
            continue
        missing = tuple(public for public, entries in followed.items()
                        if not any(_knows(chain, device, entry, said.get(device.public, ())) for entry in entries))
        if missing:
            found[device.public] = missing
    return found


def _followed(chain: Chain) -> dict[bytes, list[Entry]]:
    entries: dict[bytes, list[Entry]] = {}
    for entry in reversed(chain.entries()):
        public = entry.removes
        if public is None or (public not in entries and len(entries) >= FOLLOWED_MAX):
            continue
        device = chain.device(public)
        if device is not None and device.revoked:
            entries.setdefault(public, []).append(entry)
    return entries


def _knows(chain: Chain, device: Device, entry: Entry, heads: Sequence[bytes]) -> bool:
    if entry.signer == device.public:
        return True
    # What lies before its certificate it has got when it joined.
    return chain.in_past(entry.hash, [name for name in (*heads, device.entry) if name in chain])
