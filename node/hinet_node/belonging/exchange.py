"""New device keys for a home that keeps its chain and vault: `init --rekey` for a copied home, and the last step of a
recovery on a home.

The order of writes is `device_keys`'s: at each instant the home is the old device or the new one. Who certifies the new
keys is the caller's: the old key where it is an admin, an inviting device by a code, or the root.
"""

from __future__ import annotations

from collections.abc import Callable

from hinet_node.belonging import chain_store
from hinet_node.belonging.certificates import expiry_of
from hinet_node.belonging.device_keys import prepare_next, settle_keys
from hinet_node.belonging.membership import Membership, grown
from hinet_node.errors import ConflictError, NotAuthorised
from hinet_node.home import DEVICE_KEY_NEXT
from hinet_node.ports import Clock, Disk, Randomness
from hinet_protocol import limits
from hinet_protocol.chain import Chain, make_device_add
from hinet_protocol.errors import ChainForeign
from hinet_protocol.identity import DeviceKeys

NAMES_TRIED_MAX = 1_000


def rekey_as_admin(disk: Disk, randomness: Randomness, clock: Clock, name: str = "") -> Membership:
    """The home's admin key certifies new keys under a new name; the copy of the home keeps the old ones.

    The home's lock must be held. Errors: `NotAuthorised` where the old key is no admin; `EntryConflict` for a name that
    is taken; `NoSpace`.
    """
    old = Membership.load(disk, randomness, clock)
    if not old.device.live or old.role != "admin":
        state = f"a {old.role}" if old.device.live else "revoked"
        raise NotAuthorised(f"{old.name} is {state}, so an admin has to let its new key in",
                            next_step="on an admin device: hinet-node invite   then here: hinet-node init --rekey CODE")
    chain = old.chain()
    wanted, now_s = name or free_name(chain, old.name), int(clock.now_unix_s())

    def certify(keys: DeviceKeys) -> Chain:
        return grown(chain, [make_device_add(
            chain, old.keys, name=wanted, public=keys.public, box_public=keys.box_public, role="admin", tier=old.tier,
            time_s=now_s, expires_s=expiry_of("admin", now_s), keyring=old.keyring,
            ephemeral_seed=randomness.draw(32))])

    return exchange_keys(disk, randomness, clock, chain, certify)


def exchange_keys(disk: Disk, randomness: Randomness, clock: Clock, chain: Chain,
                  certify: Callable[[DeviceKeys], Chain]) -> Membership:
    """Draw keys, let `certify` give the chain that names them, and take both up. The home's lock must be held."""
    keys = prepare_next(disk, randomness, chain)
    return take_up(disk, randomness, clock, chain, keys, certify(keys))


def take_up(disk: Disk, randomness: Randomness, clock: Clock, chain: Chain, keys: DeviceKeys, following: Chain,
            ) -> Membership:
    """Go from `chain` to `following`, which names `keys`; they are durable as the next ones already.

    Errors: `ConflictError` when the two chains are of different identities; `NoSpace` (the home stays what it was).
    """
    if following.identity_id != chain.identity_id:
        raise ConflictError("that household is another one, and this home's vault belongs to its own; nothing was "
                            "changed", code=ChainForeign.code, next_step="use another --home to join it")
    whole = grown(chain, following.raws())
    chain_store.append(disk, whole, [entry.hash for entry in whole.entries() if entry.hash not in chain])
    settle_keys(disk, whole)
    return Membership(disk, randomness, clock, keys, whole)


def free_name(chain: Chain, name: str) -> str:
    """NAME-2, or the first number after it that no live device has."""
    stem, _, number = name.rpartition("-")
    base = stem if stem and number.isdecimal() and len(number) < 4 else name
    for number_tried in range(2, NAMES_TRIED_MAX):
        ending = f"-{number_tried}"
        kept = base.encode("utf-8")[:limits.name_bytes_max - len(ending)].decode("utf-8", "ignore")
        if chain.device_named(kept + ending) is None:
            return kept + ending
    raise ConflictError(f"every name like {name}-2 is taken", next_step="choose one: --name NAME")


class RekeyedHome:
    """The place of a join whose home keeps its chain and vault."""

    def __init__(self, disk: Disk, randomness: Randomness, clock: Clock, chain: Chain) -> None:
        self._disk = disk
        self._randomness = randomness
        self._clock = clock
        self._chain = chain

    def new_keys(self) -> DeviceKeys:
        self._disk.remove(DEVICE_KEY_NEXT)
        return prepare_next(self._disk, self._randomness, self._chain)

    def take_up(self, keys: DeviceKeys, chain: Chain) -> Membership:
        return take_up(self._disk, self._randomness, self._clock, self._chain, keys, chain)
