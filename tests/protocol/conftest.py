"""Fixed keys and small chains for the protocol's tests: everything is derived from a label, so runs repeat exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from blake3 import blake3
from hypothesis import settings

from hinet_protocol.chain import Chain, make_device_add, make_epoch, make_genesis, open_keyring
from hinet_protocol.identity import DeviceKeys, RootKey, Signer

# Times on a busy machine say nothing about the code, and a failing example must fail again.
settings.register_profile("protocol", deadline=None, print_blob=True)
settings.load_profile("protocol")


def entropy(label: str, count: int = 32) -> bytes:
    return blake3(label.encode()).digest(count)


def device_keys(label: str) -> DeviceKeys:
    return DeviceKeys.from_entropy(entropy(label, 64))


@dataclass
class Household:
    """A chain that grows, with the keys of everybody in it."""

    root: RootKey
    chain: Chain
    admin: DeviceKeys
    spare: RootKey

    def add(self, label: str, role: str = "member", tier: str = "laptop", signer: Signer | None = None) -> DeviceKeys:
        keys = device_keys(label)
        ring = open_keyring(self.chain, self.admin)
        raw = make_device_add(
            self.chain,
            signer or self.admin,
            name=label,
            public=keys.public,
            box_public=keys.box_public,
            role=role,
            tier=tier,
            time_s=1_000,
            keyring=ring,
            ephemeral_seed=entropy("wrap " + label),
        )
        self.take(raw)
        return keys

    def take(self, *raws: bytes) -> None:
        merged = self.chain.merge(raws)
        assert not merged.rejected, merged.rejected
        self.chain = merged.chain

    def epoch(self, label: str) -> bytes:
        raw = make_epoch(
            self.chain,
            self.admin,
            key=entropy("key " + label),
            ephemeral_seed=entropy("seed " + label),
            time_s=1_000,
            keyring=open_keyring(self.chain, self.admin),
        )
        self.take(raw)
        return raw


@pytest.fixture
def new_household() -> Callable[[str], Household]:
    """Makes a household with a first admin device `<name>` and a first epoch."""

    def make(name: str = "anna") -> Household:
        root, spare = RootKey(entropy("root " + name)), RootKey(entropy("spare root " + name))
        chain = Chain.from_entries([make_genesis(root, 1_000, spare.public)])
        household = Household(root, chain, device_keys(name), spare)
        household.add(name, role="admin", tier="cloud", signer=root)
        household.epoch("first")
        return household

    return make


@pytest.fixture
def household(new_household: Callable[[str], Household]) -> Household:
    return new_household("anna")


@pytest.fixture
def keys_of() -> Callable[[str], DeviceKeys]:
    return device_keys


@pytest.fixture
def random_bytes() -> Callable[..., bytes]:
    """Bytes that look random and are the same in each run."""
    return entropy
