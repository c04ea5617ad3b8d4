"""This device's place in the household: its keys, the chain on disk, the epoch keys it can open.

The chain's rules are `hinet_protocol.chain`'s. Here: entries are durable before anything acts on them, and a home whose
chain was cut short is noticed. Storage: `chain/<number>.entries` are segments (canonical lists of raw entries), each
written once; `chain/head` is written after them and names height and heads. SPEC section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hinet_node.errors import ConflictError, IntegrityError, NotAuthorised, NotInitialised
from hinet_node.home import CHAIN, CHAIN_HEAD, DEVICE_KEY
from hinet_node.ports import Clock, Disk, Randomness
from hinet_protocol import canonical, limits
from hinet_protocol.chain import (
    Chain,
    Device,
    make_device_add,
    make_device_revoke,
    make_epoch,
    make_genesis,
    needs_epoch,
    open_keyring,
)
from hinet_protocol.epochs import Keyring
from hinet_protocol.errors import ProtocolError
from hinet_protocol.identity import DeviceKeys, RootKey, device_entropy_bytes, seed_bytes

SEGMENTS_MAX = 64
"""With more segments than this, they are written into one."""


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
              ) -> Membership:
        """A new household: genesis, this device as first admin, the first epoch. Nothing stays after a failure.

        Errors: `ConflictError` when the home holds an identity; `NoSpace`; `ProtocolError` for an unusable name.
        """
        refuse_second(disk)
        keys = draw_keys(randomness)
        now_s = int(clock.now_unix_s())
        genesis = make_genesis(root, now_s)
        chain = Chain.from_entries([genesis])
        chain = _grown(chain, make_device_add(
            chain, root, name=name, public=keys.public, box_public=keys.box_public, role="admin", tier=tier,
            time_s=now_s))
        chain = _grown(chain, make_epoch(chain, keys, key=randomness.draw(32), ephemeral_seed=randomness.draw(32),
                                         keyring=Keyring(), time_s=now_s))
        return cls.adopt(disk, randomness, clock, keys, chain)

    @classmethod
    def adopt(cls, disk: Disk, randomness: Randomness, clock: Clock, keys: DeviceKeys, chain: Chain) -> Membership:
        """Take up a chain that names these keys (after `found` or a join): keys first, then chain, then head.

        The home belongs to the household once `chain/head` is there; a failure before that leaves it free. A key that
        was there before stays: there may be a certificate for it already, which the next join takes up.
        """
        refuse_second(disk)
        made = (CHAIN_HEAD, _segment_name(0), *(() if disk.exists(DEVICE_KEY) else (DEVICE_KEY,)))
        try:
            disk.write_atomic(DEVICE_KEY, keys.to_bytes(), private=True)
            _write_segment(disk, 0, chain.raws())
            _write_head(disk, chain)
        except BaseException:
            for name in made:
                disk.remove(name)
            raise
        return cls(disk, randomness, clock, keys, chain)

    @classmethod
    def load(cls, disk: Disk, randomness: Randomness, clock: Clock) -> Membership:
        """What the home holds.

        Errors: `NotInitialised`; `IntegrityError` when a key or the chain is damaged or was cut short.
        """
        if not disk.exists(CHAIN_HEAD):
            raise NotInitialised("this machine belongs to no household yet",
                                 next_step="hinet-node init   or:  hinet-node join CODE")
        try:
            keys = DeviceKeys.from_bytes(disk.read(DEVICE_KEY))
            height, heads = _read_head(disk)
            raws = [raw for name in _segments(disk) for raw in _read_segment(disk, name)]
            chain = Chain.from_entries(raws)
        except (ProtocolError, FileNotFoundError) as error:
            raise IntegrityError(f"the home's keys or chain are damaged: {error}",
                                 next_step="restore the home from a backup, or join again with a new --home",
                                 code="E_HOME_DAMAGED") from error
        if chain.missing(heads) or chain.height < height:
            raise IntegrityError(f"the chain in this home was cut short: it had height {height}, now {chain.height}",
                                 next_step="restore the folder `chain`, or join again with a new --home",
                                 code="E_CHAIN_CUT")
        return cls(disk, randomness, clock, keys, chain)

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
            self._persist(merged.chain, merged.added)
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
            raise NotAuthorised(f"only an admin device may {work}, and {self.name} is a {self.role}",
                                next_step=f"do it on an admin device: {admins}")

    def revoke(self, public: bytes, reason: str) -> None:
        """Put a device out of the household and give the others a new epoch. Durable when this returns.

        Errors: `NotAuthorised`; `LastAdmin`; other `ProtocolError`.
        """
        self.require_admin("revoke a device")
        now_s = int(self._clock.now_unix_s())
        self.take_in([make_device_revoke(self._chain, self.keys, public, reason=reason, time_s=now_s)])
        self.renew_epoch_if_needed()

    def renew_epoch_if_needed(self) -> bool:
        """Make a new epoch when the current one reaches a device that no longer belongs, or misses one that does."""
        if self.role != "admin" or not self._chain.is_member(self.keys.public) or not needs_epoch(self._chain):
            return False
        self.take_in([make_epoch(
            self._chain, self.keys, key=self._randomness.draw(32), ephemeral_seed=self._randomness.draw(32),
            keyring=self._keyring, time_s=int(self._clock.now_unix_s()))])
        return True

    def _persist(self, chain: Chain, added: Sequence[bytes]) -> None:
        raws = [entry.raw for name in added if (entry := chain.entry(name)) is not None]
        numbers = [int(name.partition(".")[0]) for name in _segments(self._disk)]
        _write_segment(self._disk, max(numbers, default=-1) + 1, raws)
        _write_head(self._disk, chain)
        if len(numbers) >= SEGMENTS_MAX:
            _write_segment(self._disk, 0, chain.raws())
            for number in [*numbers[1:], max(numbers) + 1]:
                self._disk.remove(_segment_name(number))


def refuse_second(disk: Disk) -> None:
    """Errors: `ConflictError` when the home belongs to a household already."""
    if disk.exists(CHAIN_HEAD):
        raise ConflictError("this home holds an identity already, and it was left as it is",
                            next_step="see it: hinet-node status   or choose another folder: --home PATH",
                            code="E_ALREADY_INITIALISED")


def draw_keys(randomness: Randomness) -> DeviceKeys:
    """New device keys."""
    return DeviceKeys.from_entropy(randomness.draw(device_entropy_bytes))


def draw_root(randomness: Randomness) -> RootKey:
    """A new root; its words are shown once and it is not kept."""
    return RootKey(randomness.draw(seed_bytes))


def _grown(chain: Chain, raw: bytes) -> Chain:
    merged = chain.merge([raw])
    if merged.rejected:
        raise merged.rejected[0].error
    return merged.chain


def _segment_name(number: int) -> str:
    return f"{CHAIN}/{number:06d}.entries"


def _segments(disk: Disk) -> list[str]:
    return [name for name in disk.list(CHAIN) if name.endswith(".entries")]


def _write_segment(disk: Disk, number: int, raws: Sequence[bytes]) -> None:
    disk.write_atomic(_segment_name(number), canonical.encode(list(raws)))


def _read_segment(disk: Disk, name: str) -> list[bytes]:
    found = canonical.decode(disk.read(f"{CHAIN}/{name}"), limits.chain_bytes_max)
    if not isinstance(found, list) or not all(isinstance(raw, bytes) for raw in found):
        raise IntegrityError(f"{CHAIN}/{name} is no list of chain entries", code="E_HOME_DAMAGED")
    return found


def _write_head(disk: Disk, chain: Chain) -> None:
    disk.write_atomic(CHAIN_HEAD, canonical.encode({"v": 1, "height": chain.height, "heads": list(chain.heads)}))


def _read_head(disk: Disk) -> tuple[int, list[bytes]]:
    found = canonical.decode(disk.read(CHAIN_HEAD))
    height, heads = (found.get("height"), found.get("heads")) if isinstance(found, dict) else (None, None)
    if not isinstance(height, int) or not isinstance(heads, list):
        raise IntegrityError(f"{CHAIN_HEAD} is damaged", code="E_HOME_DAMAGED",
                             next_step="restore it from a backup, or join again with a new --home")
    return height, [name for name in heads if isinstance(name, bytes)]
