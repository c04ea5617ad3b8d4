"""The kinds of chain entry and the form of each one's body. SPEC.md, 3.2. What an entry may do is left to `rules`."""

from __future__ import annotations

from hinet_protocol import limits, schema
from hinet_protocol.epochs import box_key
from hinet_protocol.schema import bytes32, list_of, one_of, optional, row, sorted_unique, text, uint63

GENESIS = "genesis"
DEVICE_ADD = "device.add"
DEVICE_REVOKE = "device.revoke"
DEVICE_ROTATE = "device.rotate"
EPOCH_NEW = "epoch.new"
ROOT_ROTATE = "root.rotate"
CHECKPOINT = "checkpoint"
CONSENT = "consent"
BASE_ADOPT = "base.adopt"

ROLES = ("admin", "member", "keeper")
TIERS = ("cloud", "laptop", "pocket")
DECISIONS = ("in", "out")

_wrapped = schema.binary(48, 48)
_epoch_keys = sorted_unique(list_of(row(bytes32, _wrapped), limits.epoch_previous_max))
_root: dict[str, schema.Check] = {"root": bytes32, "box": box_key, "next": optional(bytes32)}
_certificate: dict[str, schema.Check] = {
    "name": text(limits.name_bytes_max, 1),
    "sign": bytes32,
    "box": box_key,
    "expires": uint63,
    # Epoch keys for the device: the ephemeral X25519 key, and rows of epoch id and wrapped key.
    "ephemeral": optional(bytes32),
    "epochs": _epoch_keys,
}

BODIES: dict[str, dict[str, schema.Check]] = {
    GENESIS: _root,
    ROOT_ROTATE: _root,
    DEVICE_ADD: {**_certificate, "role": one_of(*ROLES), "tier": one_of(*TIERS)},
    DEVICE_ROTATE: {**_certificate, "device": bytes32},
    DEVICE_REVOKE: {"device": bytes32, "reason": text(limits.reason_bytes_max)},
    EPOCH_NEW: {
        "ephemeral": bytes32,
        "check": bytes32,
        # Rows of device or root key and wrapped epoch key, and rows of earlier epoch id and its sealed key.
        "wraps": sorted_unique(list_of(row(bytes32, _wrapped), limits.devices_max)),
        "previous": _epoch_keys,
    },
    CHECKPOINT: {"note": text(limits.reason_bytes_max)},
    CONSENT: {
        "commune": bytes32,
        "terms": bytes32,
        "decision": one_of(*DECISIONS),
        "round": uint63,
        "expires": uint63,
    },
    BASE_ADOPT: {"base": bytes32, "previous": optional(bytes32), "commune": optional(bytes32), "round": uint63},
}
