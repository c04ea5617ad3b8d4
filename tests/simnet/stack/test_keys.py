"""Noise's keys come from the seed inside a simulation, and from the machine outside it."""

from __future__ import annotations

from libp2p.crypto import x25519
from noise.backends.default.diffie_hellmans import ED25519

from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.stack.keys import seeded_noise


def draw() -> tuple[bytes, bytes]:
    return ED25519().generate_keypair().public_bytes, x25519.create_new_key_pair().private_key.to_bytes()


def test_a_seed_repeats_the_keys_and_leaves_the_real_ones_as_they_were() -> None:
    makers = ED25519.generate_keypair, x25519.create_new_key_pair
    found = []
    for seed in (1, 1, 2):
        with seeded_noise(SeededRandomness(seed, "noise")):
            found.append(draw())
    assert found[0] == found[1] != found[2]
    assert (ED25519.generate_keypair, x25519.create_new_key_pair) == makers
    assert draw() != draw()
