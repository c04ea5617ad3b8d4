"""A copy of the root's seed in a file that only a passphrase opens. SPEC.md, 2.4.

The passphrase is stretched with Argon2id, whose costs stand in the file. A reader bounds them before it works, so a
file from anywhere can cost a gibibyte and a few seconds, never more. Where the file is kept, and how the passphrase is
asked for, is left to the command line.
"""

from __future__ import annotations

import unicodedata

from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
    crypto_pwhash_alg,
    crypto_pwhash_ALG_ARGON2ID13,
)
from nacl.exceptions import CryptoError as NaclError

from hinet_protocol import limits
from hinet_protocol.errors import KeyInvalid, PassphraseWrong
from hinet_protocol.identity import RootKey, seed_bytes

MAGIC = b"hinet-sealed-root-v1\n"
SALT_BYTES = 16
NONCE_BYTES = 24
sealing_entropy_bytes = SALT_BYTES + NONCE_BYTES
sealed_root_bytes = len(MAGIC) + 4 + 4 + sealing_entropy_bytes + seed_bytes + 16

MEMORY_KIB = 262_144
PASSES = 3


def seal_root(
    root: RootKey, passphrase: str, entropy: bytes, *, memory_kib: int = MEMORY_KIB, passes: int = PASSES
) -> bytes:
    """The bytes of the file, always 117. `entropy` is 40 fresh random bytes.

    Raises KeyInvalid for a passphrase that is too short or too long.
    """
    if len(entropy) != sealing_entropy_bytes:
        raise KeyInvalid(f"Sealing needs {sealing_entropy_bytes} random bytes, {len(entropy)} were given.")
    if len(passphrase) < limits.passphrase_chars_min:
        raise KeyInvalid(
            f"A passphrase needs {limits.passphrase_chars_min} characters at least; five or six words that nobody "
            "else would put together are good."
        )
    salt, nonce = entropy[:SALT_BYTES], entropy[SALT_BYTES:]
    head = MAGIC + memory_kib.to_bytes(4, "big") + passes.to_bytes(4, "big") + salt + nonce
    key = _stretched(passphrase, salt, memory_kib, passes)
    return head + crypto_aead_xchacha20poly1305_ietf_encrypt(root.seed, head, nonce, key)


def open_sealed_root(raw: bytes, passphrase: str) -> RootKey:
    """The root in the file. Raises KeyInvalid when this is no such file, PassphraseWrong when it does not open."""
    if not raw.startswith(MAGIC) or len(raw) != sealed_root_bytes:
        raise KeyInvalid("This is not a sealed root: it is another file, was cut short, or a newer version made it.")
    at = len(MAGIC)
    memory_kib, passes = int.from_bytes(raw[at : at + 4], "big"), int.from_bytes(raw[at + 4 : at + 8], "big")
    salt, nonce = raw[at + 8 : at + 8 + SALT_BYTES], raw[at + 8 + SALT_BYTES : at + 8 + sealing_entropy_bytes]
    head, sealed = raw[: at + 8 + sealing_entropy_bytes], raw[at + 8 + sealing_entropy_bytes :]
    key = _stretched(passphrase, salt, memory_kib, passes)
    try:
        return RootKey(crypto_aead_xchacha20poly1305_ietf_decrypt(sealed, head, nonce, key))
    except (NaclError, ValueError):
        text = "The sealed root does not open: the passphrase is another, or the file was changed."
        raise PassphraseWrong(text) from None


def _stretched(passphrase: str, salt: bytes, memory_kib: int, passes: int) -> bytes:
    if not limits.argon2_memory_kib_min <= memory_kib <= limits.argon2_memory_kib_max:
        raise KeyInvalid(f"A sealed root asks for {memory_kib} KiB of memory; from {limits.argon2_memory_kib_min} to "
                         f"{limits.argon2_memory_kib_max} are allowed.")  # fmt: skip
    if not 1 <= passes <= limits.argon2_passes_max:
        raise KeyInvalid(f"A sealed root asks for {passes} passes; from 1 to {limits.argon2_passes_max} are allowed.")
    typed = unicodedata.normalize("NFKC", passphrase[: limits.passphrase_chars_max + 1]).encode("utf-8", "replace")
    if len(passphrase) > limits.passphrase_chars_max:
        raise KeyInvalid(f"A passphrase has at most {limits.passphrase_chars_max} characters.")
    try:
        return crypto_pwhash_alg(seed_bytes, typed, salt, passes, memory_kib * 1024, crypto_pwhash_ALG_ARGON2ID13)
    except (NaclError, MemoryError):
        text = f"This machine lacks the {memory_kib >> 10} MiB of memory that opening this file takes."
        raise KeyInvalid(text) from None
