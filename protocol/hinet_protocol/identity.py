"""Keys: the root from 24 words, device keys, signatures with domains, names for keys. SPEC.md, 2.

Randomness comes in as bytes. What a key is allowed to do is left to `chain`.
"""

from __future__ import annotations

import base64
import difflib
import functools
import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from blake3 import blake3
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from mnemonic import Mnemonic
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError
from nacl.exceptions import CryptoError as NaclError
from nacl.public import PrivateKey
from nacl.signing import SigningKey

from hinet_protocol.errors import KeyInvalid, PhraseError, SignatureInvalid

root_words = 24
seed_bytes = 32
public_bytes = 32
signature_bytes = 64
device_entropy_bytes = 64

# One domain for each kind of signed object: a signature made for one can't be used as another.
SIGN_CHAIN_ENTRY = b"chain-entry"
SIGN_JOIN_REQUEST = b"join-request"
SIGN_RECOVER = b"recover"
SIGN_VAULT_HEAD = b"vault-head"
SIGN_PASSPORT = b"passport"

_SIGN_PREFIX = b"hinet-sign-v1\0"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# libp2p: multihash "identity" (0x00) of 36 bytes, protobuf PublicKey{Type: Ed25519 (1), Data: 32 bytes}.
_PEER_ID_PREFIX = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])


class Signer(Protocol):
    """Whoever can sign: the root or a device."""

    @property
    def public(self) -> bytes:
        """The Ed25519 public key, 32 bytes."""

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """A 64-byte signature over the domain and the message."""


def hash_bytes(raw: bytes) -> bytes:
    """The BLAKE3 hash, 32 bytes: the name of a chain entry, a pack, an identity."""
    return blake3(raw).digest()


def derive_key(secret: bytes, label: str, salt: bytes = b"", length_bytes: int = 32) -> bytes:
    """HKDF-SHA256 with the label as info. Labels of this project begin with `hinet/1/`."""
    return HKDF(algorithm=SHA256(), length=length_bytes, salt=salt or None, info=label.encode("ascii")).derive(secret)


def signed_bytes(domain: bytes, message: bytes) -> bytes:
    """What is really signed: prefix, length of the domain as one byte, domain, message."""
    assert 1 <= len(domain) <= 255
    return _SIGN_PREFIX + bytes([len(domain)]) + domain + message


def verify(public: bytes, domain: bytes, message: bytes, signature: bytes) -> None:
    """Raises SignatureInvalid unless `signature` was made by the key of `public` over these very bytes."""
    if len(public) != public_bytes or len(signature) != signature_bytes:
        raise SignatureInvalid("A key or signature has the wrong length.")
    try:
        crypto_sign_open(signature + signed_bytes(domain, message), public)
    except (BadSignatureError, NaclError, ValueError):
        raise SignatureInvalid(
            f"A signature ({domain.decode('ascii', 'replace')}) does not match its key: the data was changed, or "
            "somebody else made it. It was refused."
        ) from None


@dataclass(frozen=True)
class RootKey:
    """The owner's root. `seed` is the 32 bytes that the 24 words stand for; it is never written to disk here.

    Signing and opening epochs use keys derived under labels of their own. The words are enough to recover the data:
    each epoch is wrapped to the root as well.
    """

    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.seed) != seed_bytes:
            raise KeyInvalid(f"A root seed has {seed_bytes} bytes, this one {len(self.seed)}.")

    @classmethod
    def from_words(cls, words: str | Sequence[str]) -> RootKey:
        """The root that 24 words stand for. Case, spaces and words cut after four letters are forgiven.

        Raises PhraseError, with the position of the first wrong word, or without one when only the checksum fails.
        """
        return cls(_entropy_from_words(words))

    @functools.cached_property
    def _signing(self) -> SigningKey:
        return SigningKey(derive_key(self.seed, "hinet/1/root/sign"))

    @functools.cached_property
    def box_private(self) -> PrivateKey:
        """The X25519 secret, for `epochs`."""
        return PrivateKey(derive_key(self.seed, "hinet/1/root/box"))

    @property
    def public(self) -> bytes:
        """The Ed25519 public key, 32 bytes."""
        return bytes(self._signing.verify_key)

    @property
    def box_public(self) -> bytes:
        """The X25519 public key, 32 bytes."""
        return bytes(self.box_private.public_key)

    @property
    def identity_id(self) -> bytes:
        """BLAKE3 of the public key, 32 bytes: the name of the identity."""
        return identity_id(self.public)

    def words(self) -> tuple[str, ...]:
        """The 24 words, to be shown once."""
        return tuple(_english().to_mnemonic(self.seed).split(" "))

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """A 64-byte signature over the domain and the message."""
        return self._signing.sign(signed_bytes(domain, message)).signature


@dataclass(frozen=True)
class DeviceKeys:
    """The two secrets of a device. `sign_seed` is also the seed of its libp2p peer key; `box_seed` opens epochs."""

    sign_seed: bytes = field(repr=False)
    box_seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.sign_seed) != seed_bytes or len(self.box_seed) != seed_bytes:
            raise KeyInvalid("A device key consists of two seeds of 32 bytes each.")

    @classmethod
    def from_entropy(cls, entropy: bytes) -> DeviceKeys:
        """New keys from 64 random bytes."""
        if len(entropy) != device_entropy_bytes:
            raise KeyInvalid(f"Device keys need {device_entropy_bytes} random bytes, {len(entropy)} were given.")
        return cls(entropy[:32], entropy[32:])

    @classmethod
    def from_bytes(cls, raw: bytes) -> DeviceKeys:
        """Keys from the form that `to_bytes` gives. Raises KeyInvalid."""
        magic = b"hinet-device-key-v1\n"
        if not raw.startswith(magic) or len(raw) != len(magic) + device_entropy_bytes:
            raise KeyInvalid("This is not a device key file: it is cut short or was changed. Restore it or join anew.")
        return cls.from_entropy(raw[len(magic) :])

    def to_bytes(self) -> bytes:
        """The form for the key file (mode 0600): a magic line, then both seeds."""
        return b"hinet-device-key-v1\n" + self.sign_seed + self.box_seed

    @functools.cached_property
    def _signing(self) -> SigningKey:
        return SigningKey(self.sign_seed)

    @functools.cached_property
    def box_private(self) -> PrivateKey:
        """The X25519 secret, for `epochs`."""
        return PrivateKey(self.box_seed)

    @property
    def public(self) -> bytes:
        """The Ed25519 public key, 32 bytes; also the libp2p peer key."""
        return bytes(self._signing.verify_key)

    @property
    def box_public(self) -> bytes:
        """The X25519 public key, 32 bytes."""
        return bytes(self.box_private.public_key)

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """A 64-byte signature over the domain and the message."""
        return self._signing.sign(signed_bytes(domain, message)).signature


def identity_id(root_public: bytes) -> bytes:
    """The name of an identity: BLAKE3 of its first root public key, 32 bytes."""
    return hash_bytes(root_public)


def root_commitment(next_root_public: bytes) -> bytes:
    """The 32 bytes in the genesis entry that promise the next root without showing it."""
    return hash_bytes(b"hinet/1/next-root\0" + next_root_public)


def fingerprint(public: bytes) -> str:
    """Eight characters for a person to compare, as `ABCD-EFGH`: the first 40 bits of BLAKE3 of the key, in base32."""
    text = base64.b32encode(blake3(b"hinet/1/fingerprint\0" + public).digest(5)).decode("ascii")
    return f"{text[:4]}-{text[4:]}"


def device_id(public: bytes) -> str:
    """The key as 52 characters of lower-case base32: a name for files and logs, from which the key can be read back."""
    return base64.b32encode(public).decode("ascii").rstrip("=").lower()


def device_public(text: str) -> bytes:
    """The key behind a `device_id`. Raises KeyInvalid."""
    try:
        raw = base64.b32decode(text.upper() + "====")
    except ValueError:
        raw = b""
    if len(raw) != public_bytes or device_id(raw) != text.lower():
        raise KeyInvalid("This is not a device id: 52 letters and digits 2 to 7 are expected.")
    return raw


def identity_text(identity: bytes) -> str:
    """The identity id as a person sees it, the first 80 bits in base32, as `ABCD-EFGH-IJKL-MNOP`."""
    text = base64.b32encode(identity[:10]).decode("ascii")
    return "-".join(text[at : at + 4] for at in range(0, 16, 4))


def peer_id_bytes(public: bytes) -> bytes:
    """The libp2p peer id of an Ed25519 key as bytes, 38 of them."""
    return _PEER_ID_PREFIX + public


def public_of_peer_id(raw: bytes) -> bytes:
    """The Ed25519 key inside the bytes of a libp2p peer id. Raises KeyInvalid for anything else."""
    if len(raw) != len(_PEER_ID_PREFIX) + public_bytes or not raw.startswith(_PEER_ID_PREFIX):
        raise KeyInvalid("This is not the peer id of an Ed25519 key.")
    return raw[len(_PEER_ID_PREFIX) :]


def peer_id(public: bytes) -> str:
    """The libp2p peer id of an Ed25519 key, in base58 (`12D3KooW…`)."""
    raw = peer_id_bytes(public)
    number = int.from_bytes(raw, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + digits


def peer_public(text: str) -> bytes:
    """The Ed25519 key inside a libp2p peer id. Raises KeyInvalid for other texts and other kinds of key."""
    number = 0
    if not 1 <= len(text) <= 64:
        raise KeyInvalid("This is not a peer id.")
    for char in text:
        digit = _BASE58.find(char)
        if digit < 0:
            raise KeyInvalid("This is not a peer id: it holds a character that base58 does not have.")
        number = number * 58 + digit
    raw = b"\0" * (len(text) - len(text.lstrip("1"))) + number.to_bytes((number.bit_length() + 7) // 8, "big")
    return public_of_peer_id(raw)


@functools.cache
def _english() -> Mnemonic:
    return Mnemonic("english")


@functools.cache
def word_list() -> tuple[str, ...]:
    """The 2,048 English words of BIP39: for the root's words and for codes."""
    return tuple(_english().wordlist)


@functools.cache
def _word_numbers() -> dict[str, int]:
    """Words, and their first four letters, which are unique in this list, to their number."""
    numbers = {word[:4]: number for number, word in enumerate(word_list())}
    numbers.update({word: number for number, word in enumerate(word_list())})
    return numbers


def word_number(word: str) -> int | None:
    """The number of a word in the list, 0 to 2047, or None. The first four letters are enough."""
    return _word_numbers().get(unicodedata.normalize("NFKD", word).strip().lower())


def nearest_word(word: str) -> str | None:
    """The word of the list that a mistyped one most resembles, or None."""
    found = difflib.get_close_matches(word.lower()[:32], word_list(), n=1, cutoff=0.6)
    return found[0] if found else None


def _entropy_from_words(words: str | Sequence[str]) -> bytes:
    given = words.split() if isinstance(words, str) else [word.strip() for word in words]
    if len(given) != root_words:
        raise PhraseError(f"The phrase has {root_words} words, {len(given)} were given. Type all of them in order.")
    number = 0
    for position, word in enumerate(given, start=1):
        index = word_number(word)
        if index is None:
            near = nearest_word(word)
            hint = f" Did you mean {near!r}?" if near else " Compare it with your paper."
            raise PhraseError(f"Word {position} is not one of the words of the list.{hint}", position)
        number = number << 11 | index
    entropy = (number >> 8).to_bytes(seed_bytes, "big")
    if hashlib.sha256(entropy).digest()[0] != number & 0xFF:
        raise PhraseError(
            "Each word exists, but together they are not a phrase: one word is another than on your paper, or two "
            "changed places. Compare all 24."
        )
    return entropy
