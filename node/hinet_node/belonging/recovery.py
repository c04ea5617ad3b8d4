"""A household from the words again: what the root signs when devices are lost, and how a home takes it up.

The chain comes from a home that still holds it, from a file, or from siblings (`recover_stream`). The root certifies
this machine as an admin; with `revoke_others` it removes everybody else first and closes the past. A new epoch follows,
and seals all earlier keys that the root opens, so what was written before stays readable. SPEC section 4.7.
"""

from __future__ import annotations

from dataclasses import dataclass

from hinet_node.belonging.certificates import expiry_of
from hinet_node.belonging.membership import grown
from hinet_node.errors import NotAuthorised
from hinet_node.ports import Randomness
from hinet_protocol.chain import Chain, Device, make_device_add, make_device_revoke, make_epoch, open_keyring
from hinet_protocol.epochs import Keyring
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
    if root_commitment(root.public) == chain.genesis.body["next"]:
        raise NotAuthorised("these are the spare words, and they are not in force", code="E_WORDS_SPARE",
                            next_step="take the first paper; or, if it is lost or stolen, put the spare words in "
                                      "force: hinet-node identity rotate")
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
    return with_root_epoch(chain, root, randomness, now_s)


def with_root_epoch(chain: Chain, root: RootKey, randomness: Randomness, now_s: int) -> Chain:
    """A new epoch for those who belong, signed by the root. Keys of earlier epochs that even the root can't open are
    lost already, so they hold nothing up."""
    held = open_keyring(chain, root)
    closed = {epoch.epoch_id for epoch in chain.epoch_tips} - set(held)
    current = None if held.current is None else held.current.epoch_id
    ring = Keyring(held.values(), current, held.broken | closed)
    return grown(chain, [make_epoch(chain, root, key=randomness.draw(32), ephemeral_seed=randomness.draw(32),
                                    keyring=ring, time_s=now_s)])


def _without(chain: Chain, root: RootKey, device: Device, reason: str, now_s: int) -> Chain:
    return grown(chain, [make_device_revoke(chain, root, device.public, reason=reason, time_s=now_s)])
