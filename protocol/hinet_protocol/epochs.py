"""Epoch keys: drawn once, wrapped to each member, the source of every vault key. SPEC.md, 3.5.

An epoch is named by the hash of the chain entry that made it. Its 32-byte key is wrapped to the X25519 keys of
members; the keys of the epochs before it are sealed under it, so a new member can read old packs. Which epoch
is current is decided by `chain`; how packs are sealed is left to `packs`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3
from nacl.exceptions import CryptoError as NaclError
from nacl.public import Box, PrivateKey, PublicKey
from nacl.secret import SecretBox

from hinet_protocol import schema
from hinet_protocol.errors import EpochError, KeyInvalid, MessageError
from hinet_protocol.identity import DeviceKeys, RootKey, derive_key

sealed_bytes = 48

# All u-coordinates of Curve25519 and its twist whose order divides 8, as they may be written in 255 bits; X25519 leaves
# out the highest bit. A list is a hundred times quicker than to multiply, and a long chain has many keys.
_X25519_BITS = 2**255 - 1
_PRIME = 2**255 - 19
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _PRIME - 1,
        _PRIME,
        _PRIME + 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)


@dataclass(frozen=True)
class EpochKey:
    """The key of one epoch and what is derived from it. All derived keys have 32 bytes."""

    epoch_id: bytes
    key: bytes = field(repr=False)

    @functools.cached_property
    def id_key(self) -> bytes:
        """Key for the keyed BLAKE3 that names chunks by their plaintext."""
        return derive_key(self.key, "hinet/1/epoch/chunk-id")

    @functools.cached_property
    def head_key(self) -> bytes:
        """Key that seals the private part of heads."""
        return derive_key(self.key, "hinet/1/epoch/head")

    def pack_key(self, salt: bytes) -> bytes:
        """Key of the one pack that has this random 32-byte salt."""
        if len(salt) != 32:
            raise KeyInvalid("A pack salt has 32 bytes.")
        return derive_key(self.key, "hinet/1/epoch/pack", salt)

    def derive(self, label: str, salt: bytes = b"") -> bytes:
        """A further key for a purpose of its own; `label` begins with `hinet/1/epoch/`."""
        assert label.startswith("hinet/1/epoch/")
        return derive_key(self.key, label, salt)


class Keyring(Mapping[bytes, EpochKey]):
    """The epoch keys that a device holds, by epoch id. `current` is the one to write with, None for a keeper.

    `broken` names epochs whose entry promises this device a key that does not open: they are of no use to anybody.
    """

    def __init__(
        self, keys: Iterable[EpochKey] = (), current_id: bytes | None = None, broken: Iterable[bytes] = ()
    ) -> None:
        self.broken = frozenset(broken)
        self._keys = {key.epoch_id: key for key in keys}
        self._current_id = current_id

    @property
    def current(self) -> EpochKey | None:
        """The key that new packs and heads are sealed with."""
        return None if self._current_id is None else self._keys.get(self._current_id)

    def __getitem__(self, epoch_id: bytes) -> EpochKey:
        return self._keys[epoch_id]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def key_check(key: bytes) -> bytes:
    """What an entry publishes about its key, 32 bytes, so that a wrong key is noticed when it is unwrapped."""
    return derive_key(key, "hinet/1/epoch/check")


def ephemeral_public(ephemeral_seed: bytes) -> bytes:
    """The X25519 public key that goes into the entry beside the wrapped keys."""
    return bytes(PrivateKey(_seed(ephemeral_seed)).public_key)


def _seed(seed: bytes) -> bytes:
    if len(seed) != 32:
        raise KeyInvalid(f"A key seed has 32 bytes, this one {len(seed)}.")
    return seed


def _wrap_nonce(ephemeral: bytes, recipient: bytes, context: bytes) -> bytes:
    # The ephemeral key is drawn anew for each entry, and each pair of recipient and context is used once in it.
    return blake3(b"hinet/1/wrap\0" + ephemeral + recipient + context).digest(24)


def wrap_key(key: bytes, recipient_box_public: bytes, ephemeral_seed: bytes, context: bytes = b"") -> bytes:
    """`key` (32 bytes) so that only the recipient can open it, 48 bytes. `ephemeral_seed` must be fresh and random.

    `context` tells several keys for the same recipient in one entry apart.
    """
    private = PrivateKey(_seed(ephemeral_seed))
    nonce = _wrap_nonce(bytes(private.public_key), recipient_box_public, context)
    try:
        return Box(private, PublicKey(recipient_box_public)).encrypt(key, nonce).ciphertext
    except (NaclError, ValueError, TypeError):
        raise KeyInvalid("The X25519 key of the recipient is not usable.") from None


def box_key(value: Any, path: str) -> bytes:
    """A check for `schema`: an X25519 key that can be wrapped to. A device with another would stop new epochs."""
    key: bytes = schema.bytes32(value, path)
    if int.from_bytes(key, "little") & _X25519_BITS in _SMALL_ORDER:
        raise MessageError(f"Field {path} should be an X25519 key, it is a point of small order.")
    return key


def unwrap_key(wrapped: bytes, keys: DeviceKeys | RootKey, ephemeral: bytes, context: bytes = b"") -> bytes:
    """Opens what `wrap_key` made for this device or root. Raises EpochError."""
    nonce = _wrap_nonce(ephemeral, keys.box_public, context)
    try:
        return Box(keys.box_private, PublicKey(ephemeral)).decrypt(wrapped, nonce)
    except (NaclError, ValueError, TypeError):
        raise EpochError("A wrapped vault key does not open with this device's key; it was made for another.") from None


def seal_previous(previous_key: bytes, previous_id: bytes, new_key: bytes) -> bytes:
    """The key of an earlier epoch, sealed under the new epoch's key, 48 bytes."""
    box = SecretBox(derive_key(new_key, "hinet/1/epoch/previous", previous_id))
    # The key is used for this one message only, so the nonce may be constant.
    return box.encrypt(previous_key, bytes(SecretBox.NONCE_SIZE)).ciphertext


def open_previous(sealed: bytes, previous_id: bytes, new_key: bytes) -> bytes:
    """Opens what `seal_previous` made. Raises EpochError."""
    box = SecretBox(derive_key(new_key, "hinet/1/epoch/previous", previous_id))
    try:
        return box.decrypt(sealed, bytes(SecretBox.NONCE_SIZE))
    except (NaclError, ValueError, TypeError):
        raise EpochError("The sealed key of an earlier epoch does not open; the entry was made wrongly.") from None
