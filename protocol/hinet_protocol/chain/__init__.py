"""The chain: the signed log of who belongs to the household. SPEC.md, 3.

`bodies` has the kinds, `entries` reads and signs single entries, `graph` links them, `rules` says which are valid and
`standing` which count, `members` keeps up who belongs, `taking` puts entries in, `state` is the immutable `Chain` value
with `devices`, `epoch_entries`, `statements` and `syncing` as its views, `build` makes new entries, `keyring` opens the
epoch keys. No clocks: times inside entries are informative, and an expiry only ever reduces rights on the device that
reads it.
"""

from hinet_protocol.chain.bodies import (
    BASE_ADOPT,
    CHECKPOINT,
    CONSENT,
    DEVICE_ADD,
    DEVICE_REVOKE,
    DEVICE_ROTATE,
    EPOCH_NEW,
    GENESIS,
    ROLES,
    ROOT_ROTATE,
    TIERS,
)
from hinet_protocol.chain.build import (
    make_base_adopt,
    make_checkpoint,
    make_consent,
    make_device_add,
    make_device_revoke,
    make_device_rotate,
    make_epoch,
    make_genesis,
    make_root_rotate,
)
from hinet_protocol.chain.devices import Device
from hinet_protocol.chain.entries import Entry, entry_hash, parse_entry
from hinet_protocol.chain.epoch_entries import Epoch
from hinet_protocol.chain.keyring import needs_epoch, open_keyring
from hinet_protocol.chain.state import Chain, Merged
from hinet_protocol.chain.statements import AdoptedBase, Consent
from hinet_protocol.chain.taking import Rejected, root_cause

__all__ = [
    "BASE_ADOPT",
    "CHECKPOINT",
    "CONSENT",
    "DEVICE_ADD",
    "DEVICE_REVOKE",
    "DEVICE_ROTATE",
    "EPOCH_NEW",
    "GENESIS",
    "ROLES",
    "ROOT_ROTATE",
    "TIERS",
    "AdoptedBase",
    "Chain",
    "Consent",
    "Device",
    "Entry",
    "Epoch",
    "Merged",
    "Rejected",
    "entry_hash",
    "make_base_adopt",
    "make_checkpoint",
    "make_consent",
    "make_device_add",
    "make_device_revoke",
    "make_device_rotate",
    "make_epoch",
    "make_genesis",
    "make_root_rotate",
    "needs_epoch",
    "open_keyring",
    "parse_entry",
    "root_cause",
]
