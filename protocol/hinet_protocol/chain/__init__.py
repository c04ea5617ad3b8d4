"""The chain: the signed log of who belongs to the household. SPEC.md, 3.

`entries` reads and signs single entries, `graph` links them, `rules` judges them, `state` is the immutable
`Chain` value, `build` makes new entries, `keyring` opens the epoch keys. No clocks: times inside entries are
informative, and an expiry only ever reduces rights on the device that reads it.
"""

from hinet_protocol.chain.build import make_device_add, make_device_revoke, make_epoch, make_genesis
from hinet_protocol.chain.entries import (
    DEVICE_ADD,
    DEVICE_REVOKE,
    EPOCH_NEW,
    GENESIS,
    ROLES,
    TIERS,
    Entry,
    entry_hash,
    parse_entry,
)
from hinet_protocol.chain.keyring import needs_epoch, open_keyring
from hinet_protocol.chain.state import Chain, Device, Epoch, Merged, Rejected, root_cause

__all__ = [
    "DEVICE_ADD",
    "DEVICE_REVOKE",
    "EPOCH_NEW",
    "GENESIS",
    "ROLES",
    "TIERS",
    "Chain",
    "Device",
    "Entry",
    "Epoch",
    "Merged",
    "Rejected",
    "entry_hash",
    "make_device_add",
    "make_device_revoke",
    "make_epoch",
    "make_genesis",
    "needs_epoch",
    "open_keyring",
    "parse_entry",
    "root_cause",
]
