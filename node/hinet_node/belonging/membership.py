"""This device's place in the household: its keys, the chain on disk, the epoch keys it can open.

The chain's rules are `hinet_protocol.chain`'s, its form on disk `chain_store`'s, the keys' `device_keys`'s. Here:
entries are durable before anything acts on them. SPEC section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from hinet_node.belonging import chain_store
from hinet_node.belonging.certificates import expiry_of
from hinet_node.belonging.device_keys import draw_keys, read_keys
from hinet_node.errors import ConflictError, NotAuthorised
from hinet_node.home import CHAIN_HEAD, DEVICE_KEY
from hinet_node.ports import Clock, Disk, Randomness
from hinet_protocol.chain import (
    Chain,
    Device,
    make_device_add,
    make_device_revoke,
    make_device_rotate,
    make_epoch,
    make_genesis,
    needs_epoch,
    open_keyring,
)
from hinet_protocol.epochs import Keyring
from hinet_protocol.errors import EpochError
from hinet_protocol.identity import DeviceKeys, RootKey, seed_bytes

__all__ = ["Membership", "draw_keys", "draw_root", "grown", "refuse_second"]


class Membership:
    """One per agent. All that it says is durable already; it is what peers, vault and learning ask for."""

    def __init__(self, disk: Disk, randomness: Randomness, clock: Clock, keys: DeviceKeys, chain: Chain) -> None:
        self._disk = disk
        self._randomness = randomness
        self._clock = clock
        self.keys = keys
        self._chain = chain
        self._keyring: Keyring = open_keyring(chain, keys)
        self._listeners: list[Callable[[], None]] = []

    # ---- making and loading ---------------------------------------------------------------------------------------

    @classmethod
    def found(cls, disk: Disk, randomness: Randomness, clock: Clock, *, name: str, tier: str, root: RootKey,
              next_root_public: bytes | None = None) -> Membership:
        """A new household: genesis, which promises the next root, this device as first admin, the first epoch.
        Nothing stays after a failure.

        Errors: `ConflictError` when the home holds an identity; `NoSpace`; `ProtocolError` for an unusable name.
        """
        refuse_second(disk)
        keys = draw_keys(randomness)
        now_s = int(clock.now_unix_s())
        genesis = make_genesis(root, now_s, next_root_public)
        chain = Chain.from_entries([genesis])
        chain = grown(chain, [make_device_add(
            chain, root, name=name, public=keys.public, box_public=keys.box_public, role="admin", tier=tier,
            time_s=now_s, expires_s=expiry_of("admin", now_s))])
        chain = grown(chain, [make_epoch(chain, keys, key=randomness.draw(32), ephemeral_seed=randomness.draw(32),
                                         keyring=Keyring(), time_s=now_s)])
        return cls.adopt(disk, randomness, clock, keys, chain)

    @classmethod
    def adopt(cls, disk: Disk, randomness: Randomness, clock: Clock, keys: DeviceKeys, chain: Chain) -> Membership:
        """Take up a chain that names these keys (after `found` or a join): keys first, then chain, then head.

        The home belongs to the household once `chain/head` is there; a failure before that leaves it free. A key that
        was there before stays: there may be a certificate for it already, which the next join takes up.
        """
        refuse_second(disk)
        keys_were_there = disk.exists(DEVICE_KEY)
        try:
            disk.write_atomic(DEVICE_KEY, keys.to_bytes(), private=True)
            chain_store.write_new(disk, chain)
        except BaseException:
            chain_store.remove_new(disk)
            if not keys_were_there:
                disk.remove(DEVICE_KEY)
            raise
        return cls(disk, randomness, clock, keys, chain)

    @classmethod
    def load(cls, disk: Disk, randomness: Randomness, clock: Clock) -> Membership:
        """What the home holds.

        Errors: `NotInitialised`; `IntegrityError` when a key or the chain is damaged or was cut short.
        """
        chain = chain_store.read(disk)
        return cls(disk, randomness, clock, read_keys(disk, chain), chain)

    # ---- who we are -----------------------------------------------------------------------------------------------

    def chain(self) -> Chain:
        """The current verified chain; durable already."""
        return self._chain

    @property
    def device(self) -> Device:
        """This device as the chain sees it. Errors: `NotAuthorised` when the chain does not know it."""
        found = self._chain.device(self.keys.public)
        if found is None:
            raise NotAuthorised("the chain does not name this device", next_step="hinet-node join CODE")
        return found

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def tier(self) -> str:
        return self.device.tier

    @property
    def role(self) -> str:
        """admin, member or keeper; an expired certificate makes a keeper, by this machine's clock."""
        return self.device.role_at(int(self._clock.now_unix_s()))

    @property
    def device_public(self) -> bytes:
        return self.keys.public

    @property
    def identity_id(self) -> bytes:
        return self._chain.identity_id

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """The device key's signature over domain and message (64 bytes), as `hinet_protocol.identity.verify` reads."""
        return self.keys.sign(domain, message)

    def members(self) -> Mapping[bytes, str]:
        """Public key -> name of the devices that may write: live ones that are no keepers."""
        now_s = int(self._clock.now_unix_s())
        return {device.public: device.name for device in self._chain.members() if device.role_at(now_s) != "keeper"}

    def keepers(self) -> Mapping[bytes, str]:
        """Public key -> name of the live devices that keep the vault without its keys."""
        now_s = int(self._clock.now_unix_s())
        return {device.public: device.name for device in self._chain.members() if device.role_at(now_s) == "keeper"}

    def names(self) -> Mapping[bytes, str]:
        """Public key -> name, of every device that ever was in the household."""
        return {device.public: device.name for device in self._chain.devices()}

    # ---- epochs ---------------------------------------------------------------------------------------------------

    def current_epoch(self) -> bytes | None:
        """Id of the epoch that new data is sealed under; None when this device holds no key of it (a keeper)."""
        current = self._keyring.current
        return None if current is None else current.epoch_id

    def epoch_keys(self) -> Mapping[bytes, bytes]:
        """Epoch id -> 32-byte key, for every epoch that this device can open."""
        return {epoch_id: key.key for epoch_id, key in self._keyring.items()}

    @property
    def keyring(self) -> Keyring:
        return self._keyring

    # ---- growing --------------------------------------------------------------------------------------------------

    async def absorb(self, entries: Sequence[bytes]) -> None:
        """Verify entries, make the valid ones durable, then let `chain()` hold them; known ones are no error.

        An entry that is refused holds back nobody else's: a revocation counts even beside nonsense. Errors: the first
        refusal, after the valid ones were taken; `NoSpace` (nothing was taken then).
        """
        from trio.lowlevel import checkpoint  # only here: commands without an agent start in half the time

        await checkpoint()
        self.take_in(entries)

    def take_in(self, entries: Sequence[bytes]) -> None:
        """`absorb` for a caller that may not wait: our own new entries."""
        merged = self._chain.merge(entries)
        if merged.added:
            chain_store.append(self._disk, merged.chain, merged.added)
            self._chain = merged.chain
            self._keyring = open_keyring(self._chain, self.keys)
            for listener in list(self._listeners):
                listener()
        if merged.rejected:
            raise merged.rejected[0].error

    def on_growth(self, listener: Callable[[], None]) -> None:
        """Call `listener` (quick, no await) after the chain grew and is durable."""
        self._listeners.append(listener)

    def require_admin(self, work: str) -> None:
        """Errors: `NotAuthorised` when this device may not do what only admins may."""
        if not self._chain.can_sign(self.keys.public) or self.role != "admin":
            admins = ", ".join(device.name for device in self._chain.members() if device.role == "admin")
            if self.device.live and self.device.role == "admin":
                raise NotAuthorised(f"only an admin device may {work}, and the certificate of {self.name} has ended by "
                                    "this machine's clock", code="E_CERTIFICATE_EXPIRED",
                                    next_step=f"it is renewed while the agent runs, if another admin is in reach or "
                                              f"there is none ({admins}): hinet-node run")
            raise NotAuthorised(f"only an admin device may {work}, and {self.name} is a {self.role}",
                                next_step=f"do it on an admin device: {admins}")

    def revoke(self, public: bytes, reason: str) -> None:
        """Put a device out of the household and give the others a new epoch. Durable when this returns.

        Errors: `NotAuthorised`; `LastAdmin`; other `ProtocolError`.
        """
        self.require_admin("revoke a device")
        now_s = int(self._clock.now_unix_s())
        self.take_in([make_device_revoke(self._chain, self.keys, public, reason=reason, time_s=now_s)])
        with suppress(EpochError):  # then another admin has to make it, which `tending` waits for
            self.renew_epoch_if_needed()

    def renew_epoch_if_needed(self, *, without_lost: bool = False) -> bool:
        """Make a new epoch when the current one reaches a device that no longer belongs, or misses one that does.

        With `without_lost`, keys that this device lacks hold it up no more, if whoever made their epoch was removed: a
        bad admin could have given them to nobody. Errors: `EpochError` when a key is lacking; `NoSpace`.
        """
        if self.role != "admin" or not self._chain.is_member(self.keys.public) or not needs_epoch(self._chain):
            return False
        ring = self._keyring
        if without_lost:
            current = None if ring.current is None else ring.current.epoch_id
            lost = {epoch.epoch_id for epoch in self._chain.epoch_tips
                    if epoch.epoch_id not in ring and not self._chain.can_sign(epoch.signer)}
            ring = Keyring(ring.values(), current, ring.broken | lost)
        self.take_in([make_epoch(
            self._chain, self.keys, key=self._randomness.draw(32), ephemeral_seed=self._randomness.draw(32),
            keyring=ring, time_s=int(self._clock.now_unix_s()))])
        return True

    def renew_certificate(self, public: bytes) -> None:
        """A new certificate for a live device, as long as the first; durable when this returns.

        Errors: `ProtocolError` when this device may not; `NoSpace`.
        """
        device, now_s = self._chain.device(public), int(self._clock.now_unix_s())
        assert device is not None, "only devices of the chain are renewed"
        self.take_in([make_device_rotate(self._chain, self.keys, public, time_s=now_s,
                                         expires_s=expiry_of(device.role, now_s))])


def refuse_second(disk: Disk) -> None:
    """Errors: `ConflictError` when the home belongs to a household already."""
    if disk.exists(CHAIN_HEAD):
        raise ConflictError("this home holds an identity already, and it was left as it is",
                            next_step="see it: hinet-node status   or choose another folder: --home PATH",
                            code="E_ALREADY_INITIALISED")


def draw_root(randomness: Randomness) -> RootKey:
    """A new root; its words are shown once and it is not kept."""
    return RootKey(randomness.draw(seed_bytes))


def grown(chain: Chain, raws: Sequence[bytes]) -> Chain:
    """The chain with these entries. Errors: the cause of the first refusal."""
    merged = chain.merge(raws)
    if merged.cause is not None:
        raise merged.cause
    return merged.chain
