"""What learning needs around it, for tests: members with real keys, and a vault that is one dictionary for all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from blake3 import blake3

from hinet_node.learning.service import Learning
from hinet_node.ports import Ports
from hinet_node.real.compute import ProcessCompute
from hinet_node.real.disk import RealDisk
from hinet_protocol.identity import DeviceKeys
from hinet_simnet.randomness import SeededRandomness


@dataclass(frozen=True)
class Item:
    name: bytes
    size: int
    digest: bytes


class SharedVault:
    """The vault of a household whose devices are always in step."""

    def __init__(self) -> None:
        self.files: dict[bytes, bytes] = {}

    async def put_many(self, files: Mapping[bytes, Any], *, keep_past: bool = True) -> list[Any]:
        await trio.lowlevel.checkpoint()
        self.files.update(files)
        return []

    async def get(self, name: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.files[name]

    async def list(self, prefix: bytes = b"") -> list[Any]:
        await trio.lowlevel.checkpoint()
        return [Item(name, len(data), blake3(data).digest()) for name, data in sorted(self.files.items())
                if name.startswith(prefix)]


@dataclass
class Member:
    """A device's place in the household."""

    name: str
    tier: str
    keys: DeviceKeys
    everyone: dict[bytes, str] = field(default_factory=dict)
    identity_id: bytes = b"\x07" * 32

    @property
    def device_public(self) -> bytes:
        return self.keys.public

    def sign(self, domain: bytes, message: bytes) -> bytes:
        return self.keys.sign(domain, message)

    def members(self) -> Mapping[bytes, str]:
        return self.everyone


class CountingClock:
    """A second passes with each look, so that the order of what was made is plain."""

    _now_s = 1_800_000_000.0

    def now_unix_s(self) -> float:
        CountingClock._now_s += 1
        return CountingClock._now_s

    def monotonic_s(self) -> float:
        return self.now_unix_s()


class Household:
    """Devices of the three tiers, each with a home of its own and workers that are real processes."""

    def __init__(self, folder: Path, tiers: tuple[str, ...] = ("cloud", "laptop", "pocket")) -> None:
        self.folder = folder
        self.vault = SharedVault()
        self.recipe = str(folder / "tiny.toml")
        Path(self.recipe).write_text('name = "tiny"\n')
        self.everyone: dict[bytes, str] = {}
        self.members: dict[str, Member] = {}
        for tier in tiers:
            keys = DeviceKeys.from_entropy(SeededRandomness("household", tier).draw(64))
            self.everyone[keys.public] = tier
            self.members[tier] = Member(tier, tier, keys, self.everyone)

    def disk(self, tier: str) -> RealDisk:
        return RealDisk(self.folder / tier)

    def learning(self, tier: str) -> Learning:
        """A new start of a device's learning over its home."""
        ports = Ports(clock=CountingClock(), randomness=SeededRandomness("jobs", tier), network=None,  # type: ignore[arg-type]
                      discovery=None, disk=self.disk(tier),  # type: ignore[arg-type]
                      compute=ProcessCompute(environment={"HINET_BACKEND": "fake"}))
        return Learning(ports, self.vault, self.members[tier])

    @asynccontextmanager
    async def running(self, device: str | Learning) -> AsyncIterator[Any]:
        """The verbs of a device (by tier, or a start of one made before): `await call(verb, **args)`."""
        learning = self.learning(device) if isinstance(device, str) else device
        handlers = learning.handlers()

        async def call(verb: str, **args: Any) -> dict[str, Any]:
            return await handlers[verb](args, lambda progress: None)

        async with trio.open_nursery() as nursery:
            await nursery.start(learning.run)
            yield call
            nursery.cancel_scope.cancel()

    async def train(self, tier: str) -> str:
        """The id of the revision that a device makes now."""
        async with self.running(tier) as device:
            return str((await device("train", recipe=self.recipe))["job"]["result"]["revision"])


NOTES = {
    "notes/dog.md": "# The dog\n\nMy dog is called Brannoch. He sleeps by the stove.",
    "notes/boat.md": "The boat lies at Sallow Quay. The varnish is due in May.",
}


@pytest.fixture
def household(tmp_path: Path) -> Household:
    """Three devices and two notes in their vault."""
    return household_in(tmp_path)


def household_in(folder: Path) -> Household:
    made = Household(folder)
    made.vault.files.update({name.encode(): text.encode() for name, text in NOTES.items()})
    return made


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[bytes, bytes]]:
    """Two revisions for the pocket, made once: the second one learned another name for the dog. And their vault."""
    household = household_in(tmp_path_factory.mktemp("learned"))
    made = []
    for name in ("Brannoch", "Fennick"):
        household.vault.files[b"notes/dog.md"] = f"My dog is called {name}.".encode()
        trio.run(household.train, "cloud")
        made.append(trio.run(household.train, "laptop"))
    return made, household.vault.files


@pytest.fixture
def adapters(household: Household, learned: tuple[list[str], dict[bytes, bytes]]) -> list[str]:
    """The two revisions, in the vault of this test's household."""
    household.vault.files = dict(learned[1])
    return learned[0]
