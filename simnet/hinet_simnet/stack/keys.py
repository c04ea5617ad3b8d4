"""What Noise draws, from a seed: with it the bytes on the links repeat too, and not only their sizes.

Each handshake makes an ephemeral key, and each start of a host a static one, by the operating system's randomness. Both
makers are replaced while a simulation runs. The keys are NOT secret then. libp2p and the noise library are what they
are otherwise. Leaves the device's own key to its home, which the seed gave it already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from libp2p.crypto import x25519
from noise.backends.default.diffie_hellmans import ED25519
from noise.backends.default.keypairs import KeyPair25519

from hinet_node.ports import Randomness


@contextmanager
def seeded_noise(randomness: Randomness) -> Iterator[None]:
    """While this is open every Noise key of this process comes from `randomness`; one simulation at a time."""
    before: tuple[Any, Any] = (ED25519.generate_keypair, x25519.create_new_key_pair)

    def ephemeral(self: ED25519) -> KeyPair25519:
        return KeyPair25519.from_private_bytes(randomness.draw(32))

    def static(seed: bytes | None = None) -> Any:
        private = x25519.X25519PrivateKey.from_bytes(randomness.draw(32) if seed is None else seed)
        return x25519.KeyPair(private, private.get_public_key())

    ED25519.generate_keypair = ephemeral
    x25519.create_new_key_pair = static
    try:
        yield
    finally:
        ED25519.generate_keypair, x25519.create_new_key_pair = before
