"""What the root signs, from words that are at hand: a household brought back, a device put out, a new root.

Each function gives the chain as it is to be; nothing is stored here. A recovered household has this machine as an
admin; with `revoke_others` everybody else is removed first and the past is closed. A new epoch follows each change, and
seals all earlier keys that open, so what was written before stays readable. SPEC sections 3.2 and 4.7.
"""

from __future__ import annotations

from dataclasses import dataclass

from hinet_node.belonging.certificates import expiry_of
from hinet_node.belonging.membership import grown
from hinet_node.errors import NotAuthorised
from hinet_node.ports import Randomness
from hinet_protocol.chain import (
    Chain,
    Device,
    make_checkpoint,
    make_device_add,
    make_device_revoke,
    make_epoch,
    make_root_rotate,
    open_keyring,
)
from hinet_protocol.epochs import Keyring
from hinet_protocol.errors import LimitError
from hinet_protocol.identity import DeviceKeys, RootKey, root_commitment


@dataclass(frozen=True)
class NewDevice:
    """What this machine is to be. `replaces` is the key that its home had, which is retired."""

    keys: DeviceKeys
    name: str
    tier: str
    replaces: bytes | None = None


def check_root(chain: Chain, root: RootKey) -> None:
    """Errors: `NotAuthorised` when these are not the words of the root in force, saying which they are."""
    if root.public == chain.root_public:
        return
    if root_commitment(root.public) == chain.root_promise:
        raise NotAuthorised("these are the spare words, and they are not in force", code="E_WORDS_SPARE",
                            next_step="take the first paper; or, if it is lost or stolen, put the spare words in "
                                      "force: hinet-node identity rotate")
    if root.public in {chain.genesis.signer, *(entry.signer for entry in chain.root_rotations())}:
        raise NotAuthorised("these words were replaced by the spare words, and count for nothing any more",
                            code="E_WORDS_OLD", next_step="take the paper that was the spare one")
    raise NotAuthorised("these words belong to another identity than the chain", code="E_WORDS_FOREIGN",
                        next_step="take the paper of this identity; see which it is: hinet-node identity show")


def recovered(chain: Chain, root: RootKey, new: NewDevice, randomness: Randomness, now_s: int, *,
              revoke_others: bool = False) -> Chain:
    """The chain with this machine as an admin, and a new epoch.

    Errors: `NotAuthorised` for other words; `EntryConflict` when the name is taken.
    """
    check_root(chain, root)
    for device in chain.members():
        if device.public == new.replaces:
            chain = _without(chain, root, device, "recovered under a new key", now_s)
        elif revoke_others:
            chain = _without(chain, root, device, "lost before the household was recovered", now_s)
    chain = grown(chain, [make_device_add(
        chain, root, name=new.name, public=new.keys.public, box_public=new.keys.box_public, role="admin",
        tier=new.tier, time_s=now_s, expires_s=expiry_of("admin", now_s))])
    chain = _with_epoch(chain, root, open_keyring(chain, root), randomness, now_s)
    return with_past_closed(chain, root, now_s, "recovered; all others removed") if revoke_others else chain


def revoked(chain: Chain, root: RootKey, device: Device, reason: str, randomness: Randomness, now_s: int) -> Chain:
    """The chain without this device, be it the last admin, and with a new epoch for the others.

    Errors: `NotAuthorised` for other words.
    """
    check_root(chain, root)
    chain = _without(chain, root, device, reason, now_s)
    return _with_epoch(chain, root, open_keyring(chain, root), randomness, now_s)


def rotated(chain: Chain, spare: RootKey, next_root_public: bytes, held: Keyring, randomness: Randomness, now_s: int,
            ) -> Chain:
    """The chain under the spare root, with another one promised, and its past closed. `held` are the vault keys that
    this device opens; without the current one (on a keeper) the new epoch is left to an admin's device.

    Errors: `NotAuthorised` for words that are not the spare ones.
    """
    check_spare(chain, spare)
    chain = grown(chain, [make_root_rotate(chain, spare, time_s=now_s, next_root_public=next_root_public)])
    if held.current is not None:
        chain = _with_epoch(chain, spare, held, randomness, now_s)
    return with_past_closed(chain, spare, now_s, "a new root is in force")


def check_spare(chain: Chain, spare: RootKey) -> None:
    """Errors: `NotAuthorised` when the root in force did not promise this one."""
    if chain.root_promise is None:
        raise NotAuthorised("this identity was made without spare words, so its root can't be replaced",
                            code="E_NO_SPARE", next_step="make a new identity, and let the devices join it: "
                                                         "hinet-node --home PATH init")
    if root_commitment(spare.public) != chain.root_promise:
        mine = spare.public == chain.root_public
        raise NotAuthorised("these are the words in force, not the spare ones" if mine else
                            "these are not the spare words of this identity", code="E_WORDS_NOT_SPARE",
                            next_step="take the second paper, the spare words: hinet-node identity rotate")


def with_past_closed(chain: Chain, root: RootKey, now_s: int, note: str) -> Chain:
    """With a checkpoint. A chain of more branches than one entry can follow stays open: what is removed counts all the
    same, and the next checkpoint closes it."""
    try:
        return grown(chain, [make_checkpoint(chain, root, time_s=now_s, note=note)])
    except LimitError:
        return chain


def _with_epoch(chain: Chain, root: RootKey, held: Keyring, randomness: Randomness, now_s: int) -> Chain:
    """A new epoch for those who belong, signed by the root. Keys of earlier epochs that do not open are lost already,
    so they hold nothing up."""
    closed = {epoch.epoch_id for epoch in chain.epoch_tips} - set(held)
    current = None if held.current is None else held.current.epoch_id
    ring = Keyring(held.values(), current, held.broken | closed)
    return grown(chain, [make_epoch(chain, root, key=randomness.draw(32), ephemeral_seed=randomness.draw(32),
                                    keyring=ring, time_s=now_s)])


def _without(chain: Chain, root: RootKey, device: Device, reason: str, now_s: int) -> Chain:
    return grown(chain, [make_device_revoke(chain, root, device.public, reason=reason, time_s=now_s)])
