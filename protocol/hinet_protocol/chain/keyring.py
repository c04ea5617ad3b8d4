"""Opens the epoch keys that a chain holds for one device. SPEC.md, 3.5."""

from __future__ import annotations

from hinet_protocol.chain.state import Chain
from hinet_protocol.epochs import EpochKey, Keyring, key_check, open_previous, unwrap_key
from hinet_protocol.errors import EpochError
from hinet_protocol.identity import DeviceKeys, RootKey


def open_keyring(chain: Chain, keys: DeviceKeys | RootKey) -> Keyring:
    """All epoch keys that this device, or the root, can open, directly or through later epochs. Empty for a keeper.

    A key that does not open, or does not match the entry's check, is left out and its epoch is listed as broken: the
    entry was made wrongly, and `needs_epoch` with this keyring then asks for a new epoch.
    """
    found: dict[bytes, bytes] = {}
    for epoch in chain.epochs():
        wrapped = epoch.wraps.get(keys.public)
        if wrapped is not None:
            _try(chain, found, epoch.epoch_id, wrapped, keys, epoch.ephemeral, b"")
    for epoch_id, ephemeral, wrapped in chain.wraps_for(keys.public):
        _try(chain, found, epoch_id, wrapped, keys, ephemeral, epoch_id)
    # Later epochs seal the keys of those before them, so one pass from the latest back opens all.
    for epoch in reversed(chain.epochs()):
        key = found.get(epoch.epoch_id)
        if key is None:
            continue
        for epoch_id, sealed in epoch.previous.items():
            if epoch_id not in found:
                try:
                    _keep(chain, found, epoch_id, open_previous(sealed, epoch_id, key))
                except EpochError:
                    continue
    current = chain.current_epoch
    held = [EpochKey(epoch_id, key) for epoch_id, key in found.items()]
    current_id = current.epoch_id if current is not None and current.epoch_id in found else None
    promised = {epoch.epoch_id for epoch in chain.epochs() if keys.public in epoch.wraps}
    return Keyring(held, current_id, promised - found.keys())


def _try(
    chain: Chain,
    found: dict[bytes, bytes],
    epoch_id: bytes,
    wrapped: bytes,
    keys: DeviceKeys | RootKey,
    ephemeral: bytes,
    context: bytes,
) -> None:
    try:
        _keep(chain, found, epoch_id, unwrap_key(wrapped, keys, ephemeral, context))
    except EpochError:
        return


def _keep(chain: Chain, found: dict[bytes, bytes], epoch_id: bytes, key: bytes) -> None:
    epoch = chain.epoch(epoch_id)
    if epoch is None or key_check(key) != epoch.check:
        raise EpochError("A vault key is not the one that its chain entry promises.")
    found[epoch_id] = key


def needs_epoch(chain: Chain, keyring: Keyring | None = None) -> bool:
    """An admin should make a new epoch now: there is none, several stand side by side, the current one reaches a key
    that no longer belongs (also an earlier root's), or the root or a member can't open it (for certain the one whose
    `keyring` is given)."""
    current = chain.current_epoch
    if current is None:
        return any(device.role != "keeper" for device in chain.members())
    if len(chain.epoch_tips) > 1 or (keyring is not None and keyring.current is None):
        return True
    if chain.root_public not in current.wraps:
        return True
    reached = set(current.wraps) - {chain.root_public}
    strays = {public for public in reached if not chain.is_member(public)}
    given: set[bytes] = set()
    for device in chain.devices():
        if any(epoch_id == current.epoch_id for epoch_id, _, _ in chain.wraps_for(device.public)):
            given.add(device.public)
            if not device.live:
                strays.add(device.public)
    lacking = [
        device
        for device in chain.members()
        if device.role != "keeper" and device.public not in reached and device.public not in given
    ]
    return bool(strays or lacking)
