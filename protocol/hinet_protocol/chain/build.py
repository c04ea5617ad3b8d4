"""Makes new chain entries. SPEC.md, 3.2.

Each function gives the raw bytes of one entry that is valid on top of the given chain, or raises what would make it
invalid. Randomness and time are arguments; signing keys come as a `Signer`. Nothing is stored or sent here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hinet_protocol import limits
from hinet_protocol.chain.bodies import (
    BASE_ADOPT,
    CHECKPOINT,
    CONSENT,
    DEVICE_ADD,
    DEVICE_REVOKE,
    DEVICE_ROTATE,
    EPOCH_NEW,
    GENESIS,
    ROOT_ROTATE,
)
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.chain.epoch_entries import Epoch
from hinet_protocol.chain.state import Chain
from hinet_protocol.epochs import (
    EpochKey,
    Keyring,
    ephemeral_public,
    key_check,
    open_previous,
    seal_previous,
    wrap_key,
)
from hinet_protocol.errors import EntryMalformed, EpochError, LimitError
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
    epochs = _wrapped(chain, parents, box_public, keyring, ephemeral_seed) if role != "keeper" else []
    body = {
        "name": name,
        "sign": public,
        "box": box_public,
        "role": role,
        "tier": tier,
        "expires": expires_s,
        "ephemeral": ephemeral_public(ephemeral_seed) if epochs and ephemeral_seed is not None else None,
        "epochs": epochs,
    }
    return _checked(chain, sign_entry(signer, chain.identity_id, parents, DEVICE_ADD, body, time_s))


def make_device_rotate(
    chain: Chain,
    signer: Signer,
    public: bytes,
    *,
    time_s: int,
    expires_s: int,
    name: str | None = None,
    new_public: bytes | None = None,
    new_box_public: bytes | None = None,
    keyring: Mapping[bytes, EpochKey] | None = None,
    ephemeral_seed: bytes | None = None,
) -> bytes:
    """A new certificate for the live device `public`, signed by the root or an admin; role and tier carry over.

    Without new keys it is a renewal, or with `name` a new name. With `new_public` and `new_box_public` the device goes
    on under these, and the old key is removed for ever; `keyring` and `ephemeral_seed` give the new keys the vault, as
    in `make_device_add`.
    """
    device = chain.device(public)
    if device is None:
        raise EntryMalformed("A new certificate is for a device that does not belong to the household.")
    if (new_public is None) != (new_box_public is None):
        raise EntryMalformed("A renewed certificate keeps both keys of its device, or changes both.")
    parents = _parents(chain, _certificate(chain, signer.public), device.entry)
    epochs: list[tuple[bytes, bytes]] = []
    if new_box_public is not None and device.role != "keeper":
        epochs = _wrapped(chain, parents, new_box_public, keyring, ephemeral_seed)
    body = {
        "device": public,
        "name": _own_name(chain, device.entry) if name is None else name,
        "sign": new_public or public,
        "box": new_box_public or device.box_public,
        "expires": expires_s,
        "ephemeral": ephemeral_public(ephemeral_seed) if epochs and ephemeral_seed is not None else None,
        "epochs": epochs,
    }
    return _checked(chain, sign_entry(signer, chain.identity_id, parents, DEVICE_ROTATE, body, time_s))


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
    for epoch in _to_seal(chain, keyring):
        if not chain.in_past(epoch.epoch_id, parents):
            continue  # more branches than one entry can join: `needs_epoch` stays true, the next epoch seals it
        held = None if keyring is None else keyring.get(epoch.epoch_id)
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


def make_root_rotate(chain: Chain, new_root: RootKey, *, time_s: int, next_root_public: bytes | None) -> bytes:
    """Puts the promised root in the place of the one in force. `next_root_public` is promised by its hash in turn.

    What the old root signs from now on counts nowhere. A new epoch should follow: the current one opens for the old
    root.
    """
    promise = None if next_root_public is None else root_commitment(next_root_public)
    body = {"root": new_root.public, "box": new_root.box_public, "next": promise}
    parents = tuple(sorted(_laden_heads(chain)[: limits.entry_parents_max]))
    return _checked(chain, sign_entry(new_root, chain.identity_id, parents, ROOT_ROTATE, body, time_s))


def make_checkpoint(chain: Chain, root: RootKey, *, time_s: int, note: str = "") -> bytes:
    """The root's word that all that stands here is right, and that no admin may add anything below it.

    Raises LimitError when one entry can't follow all branches: what it does not follow would fall.
    """
    parents = _laden_heads(chain)
    if len(parents) > limits.entry_parents_max:
        raise LimitError(
            f"The chain has {len(parents)} branches apart, and a checkpoint can close at most "
            f"{limits.entry_parents_max}. Let an admin's device run until it has joined them, then try again."
        )
    raw = sign_entry(root, chain.identity_id, sorted(parents), CHECKPOINT, {"note": note}, time_s)
    return _checked(chain, raw)


def make_consent(
    chain: Chain,
    signer: Signer,
    *,
    commune: bytes,
    terms: bytes,
    agreed: bool,
    round_number: int,
    time_s: int,
    expires_s: int = 0,
) -> bytes:
    """Takes the household into a commune under these terms from a round on, or out of it.

    To agree is for admins and the root; to withdraw, for every admin and member. What is withdrawn never expires.
    """
    parents = _parents(chain, _certificate(chain, signer.public))
    body = {
        "commune": commune,
        "terms": terms,
        "decision": "in" if agreed else "out",
        "round": round_number,
        "expires": expires_s,
    }
    return _checked(chain, sign_entry(signer, chain.identity_id, parents, CONSENT, body, time_s))


def make_base_adopt(
    chain: Chain,
    signer: Signer,
    *,
    base: bytes,
    time_s: int,
    previous: bytes | None = None,
    commune: bytes | None = None,
    round_number: int = 0,
) -> bytes:
    """Adopts a base by its digest, in the place of `previous`, as a commune's round gave it; signed by the root or an
    admin."""
    parents = _parents(chain, _certificate(chain, signer.public))
    body = {"base": base, "previous": previous, "commune": commune, "round": round_number}
    return _checked(chain, sign_entry(signer, chain.identity_id, parents, BASE_ADOPT, body, time_s))


def _wrapped(
    chain: Chain,
    parents: tuple[bytes, ...],
    box_public: bytes,
    keyring: Mapping[bytes, EpochKey] | None,
    ephemeral_seed: bytes | None,
) -> list[tuple[bytes, bytes]]:
    """The keys of the epochs in force, for a new X25519 key."""
    found = []
    if keyring and ephemeral_seed is not None:
        for epoch in chain.epoch_tips:
            key = keyring.get(epoch.epoch_id)
            if key is not None and chain.in_past(epoch.epoch_id, parents):
                found.append((epoch.epoch_id, wrap_key(key.key, box_public, ephemeral_seed, epoch.epoch_id)))
    return sorted(found)[: limits.epoch_previous_max]


def _own_name(chain: Chain, certificate: bytes) -> str:
    """The name in a certificate: what is shown may have been lengthened to tell two devices apart."""
    entry = chain.entry(certificate)
    assert entry is not None
    name: str = entry.body["name"]
    return name


def _laden_heads(chain: Chain) -> list[bytes]:
    """The heads that have something in their past which stands and is in no other's: first those that lead to all that
    the root signed, then the highest. On a chain that a removed key floods with branches, few are left."""
    roots = {chain.genesis.signer, *(entry.signer for entry in chain.root_rotations())}
    standing = chain.standing_entries()
    heads = sorted(chain.heads, key=lambda name: (-(chain.height_of(name) or 0), name))
    kept: list[bytes] = []
    for left in ({name for name in standing if _signer(chain, name) in roots}, set(standing)):
        left -= {name for name in left if chain.in_past(name, kept)}
        for head in heads:
            here = {name for name in left if chain.in_past(name, (head,))}
            if here:
                kept.append(head)
                left -= here
    return kept


def _signer(chain: Chain, name: bytes) -> bytes | None:
    entry = chain.entry(name)
    return None if entry is None else entry.signer


def _to_seal(chain: Chain, keyring: Keyring | None) -> tuple[Epoch, ...]:
    """The tips, and all other epochs whose keys are held here and that no later one passes on: those before a tip that
    does not open, and void ones, under which somebody may have written before it was known."""
    tips = chain.epoch_tips
    if keyring is None:
        return tips
    lacking = [tip for tip in tips if tip.epoch_id not in keyring and tip.epoch_id not in keyring.broken]
    chosen: list[Epoch] = []
    passed_on: set[bytes] = set()
    for epoch in reversed(chain.epochs()):
        held = keyring.get(epoch.epoch_id)
        if held is not None:
            if epoch.epoch_id not in passed_on:
                chosen.append(epoch)
            passed_on.update(name for name, sealed in epoch.previous.items() if _passes_on(keyring, name, sealed, held))
    chosen.sort(key=lambda epoch: epoch not in tips)
    return (*lacking, *chosen[: limits.epoch_previous_max])


def _passes_on(keyring: Keyring, epoch_id: bytes, sealed: bytes, under: EpochKey) -> bool:
    """What an entry says to pass on is what it passes on: whoever made it may have lied."""
    held = keyring.get(epoch_id)
    try:
        return held is not None and open_previous(sealed, epoch_id, under.key) == held.key
    except EpochError:
        return False


def _parents(chain: Chain, *needed: bytes | None) -> tuple[bytes, ...]:
    """The heads to build on. If there are more than one entry may name: those that lead to the root's own word, without
    which nothing would stand, and to what is needed (the hashes of certificates), then the highest."""
    if len(chain.heads) <= limits.entry_parents_max:
        return chain.heads
    of_root = [entry.hash for entry in (*chain.root_rotations(), *chain.checkpoints())]

    def order(head: bytes) -> tuple[int, int, int, bytes]:
        bound = sum(chain.in_past(name, (head,)) for name in of_root)
        reached = sum(name is not None and chain.in_past(name, (head,)) for name in needed)
        return (-bound, -reached, -(chain.height_of(head) or 0), head)

    return tuple(sorted(chain.heads, key=order)[: limits.entry_parents_max])


def _certificate(chain: Chain, public: bytes) -> bytes | None:
    device = chain.device(public)
    return None if device is None else device.entry


def _checked(chain: Chain, raw: bytes) -> bytes:
    merged = chain.merge((raw,))
    if merged.cause is not None:
        raise merged.cause
    return raw
