"""Makes new chain entries. SPEC.md, 3.2.

Each function gives the raw bytes of one entry that is valid on top of the given chain, or raises what would make it
invalid. Randomness and time are arguments; signing keys come as a `Signer`. Nothing is stored or sent here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hinet_protocol import limits
from hinet_protocol.chain.entries import DEVICE_ADD, DEVICE_REVOKE, EPOCH_NEW, GENESIS, sign_entry
from hinet_protocol.chain.state import Chain
from hinet_protocol.epochs import EpochKey, Keyring, ephemeral_public, key_check, seal_previous, wrap_key
from hinet_protocol.errors import EpochError
from hinet_protocol.identity import RootKey, Signer, root_commitment


def make_genesis(root: RootKey, time_s: int, next_root_public: bytes | None = None) -> bytes:
    """The first entry of a new identity. `next_root_public` is promised by its hash only."""
    promise = None if next_root_public is None else root_commitment(next_root_public)
    body = {"root": root.public, "box": root.box_public, "next": promise}
    return sign_entry(root, root.identity_id, (), GENESIS, body, time_s)


def make_device_add(
    chain: Chain,
    signer: Signer,
    *,
    name: str,
    public: bytes,
    box_public: bytes,
    role: str,
    tier: str,
    time_s: int,
    expires_s: int = 0,
    keyring: Mapping[bytes, EpochKey] | None = None,
    ephemeral_seed: bytes | None = None,
) -> bytes:
    """A certificate for a device, signed by the root or an admin. Times in unix seconds, `expires_s` 0 for never.

    With `keyring` and a fresh random `ephemeral_seed` (32 bytes), an admin or member is also given the keys of the
    current epochs; through them it opens the earlier ones. A keeper is given none.
    """
    parents = _parents(chain, _certificate(chain, signer.public))
    epochs: list[tuple[bytes, bytes]] = []
    if keyring and ephemeral_seed is not None and role != "keeper":
        for epoch in chain.epoch_tips:
            key = keyring.get(epoch.epoch_id)
            if key is not None and chain.in_past(epoch.epoch_id, parents):
                epochs.append((epoch.epoch_id, wrap_key(key.key, box_public, ephemeral_seed, epoch.epoch_id)))
    body = {
        "name": name,
        "sign": public,
        "box": box_public,
        "role": role,
        "tier": tier,
        "expires": expires_s,
        "ephemeral": ephemeral_public(ephemeral_seed) if epochs and ephemeral_seed is not None else None,
        "epochs": sorted(epochs)[: limits.epoch_previous_max],
    }
    return _checked(chain, sign_entry(signer, chain.identity_id, parents, DEVICE_ADD, body, time_s))


def make_device_revoke(chain: Chain, signer: Signer, public: bytes, *, time_s: int, reason: str = "") -> bytes:
    """Removes a device for ever, signed by the root, an admin, or the device itself.

    Raises LastAdmin when only the root may do it.
    """
    parents = _parents(chain, _certificate(chain, signer.public), _certificate(chain, public))
    body = {"device": public, "reason": reason}
    return _checked(chain, sign_entry(signer, chain.identity_id, parents, DEVICE_REVOKE, body, time_s))


def make_epoch(
    chain: Chain,
    signer: Signer,
    *,
    key: bytes,
    ephemeral_seed: bytes,
    time_s: int,
    keyring: Keyring | None = None,
    recipients: Iterable[bytes] | None = None,
) -> bytes:
    """A new vault epoch. `key` and `ephemeral_seed` are 32 fresh random bytes each.

    The key is wrapped to the root, for recovery, and to `recipients` (device keys; by default every live admin and
    member); the keys of the epochs before it are sealed under it. Raises EpochError when `keyring` lacks one of those,
    because their packs would be lost to devices that join later. The epoch's id is the hash of the entry.
    """
    if len(key) != 32:
        raise EpochError("An epoch key has 32 bytes.")
    parents = _parents(chain, _certificate(chain, signer.public))
    devices = [one for one in chain.members() if one.role != "keeper" and chain.in_past(one.entry, parents)]
    if recipients is not None:
        wanted = set(recipients)
        devices = [device for device in devices if device.public in wanted]
    previous = []
    for epoch in chain.epoch_tips:
        if not chain.in_past(epoch.epoch_id, parents):
            continue  # more branches than one entry can join: `needs_epoch` stays true, the next epoch seals it
        held = None if keyring is None else keyring.get(epoch.epoch_id)
        if keyring is not None and epoch.epoch_id in keyring.broken:
            continue  # it must not stand in the way for ever
        if held is None:
            raise EpochError("This device lacks the key of an earlier vault epoch, so it can't start a new one. Sync.")
        previous.append((epoch.epoch_id, seal_previous(held.key, epoch.epoch_id, key)))
    reached = [(chain.root_public, chain.root_box_public), *((one.public, one.box_public) for one in devices)]
    body = {
        "ephemeral": ephemeral_public(ephemeral_seed),
        "check": key_check(key),
        "wraps": sorted((public, wrap_key(key, box, ephemeral_seed)) for public, box in reached),
        "previous": sorted(previous)[: limits.epoch_previous_max],
    }
    return _checked(chain, sign_entry(signer, chain.identity_id, parents, EPOCH_NEW, body, time_s))


def _parents(chain: Chain, *needed: bytes | None) -> tuple[bytes, ...]:
    """The heads to build on. If there are more than one entry may name: those that lead to what is needed (the hashes
    of certificates), then the highest."""
    if len(chain.heads) <= limits.entry_parents_max:
        return chain.heads

    def order(head: bytes) -> tuple[int, int, bytes]:
        reached = sum(name is not None and chain.in_past(name, (head,)) for name in needed)
        return (-reached, -(chain.height_of(head) or 0), head)

    return tuple(sorted(chain.heads, key=order)[: limits.entry_parents_max])


def _certificate(chain: Chain, public: bytes) -> bytes | None:
    device = chain.device(public)
    return None if device is None else device.entry


def _checked(chain: Chain, raw: bytes) -> bytes:
    merged = chain.merge((raw,))
    if merged.cause is not None:
        raise merged.cause
    return raw
