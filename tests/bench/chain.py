"""The chain: 10,000 entries read, verified and settled, beside the bare signature checks of the same bytes."""

from __future__ import annotations

from typing import Any

from blake3 import blake3
from nacl.bindings import crypto_sign_open

from bench.measure import Bench, timed
from hinet_protocol import canonical
from hinet_protocol.chain import Chain, entry_hash, make_genesis
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.identity import SIGN_CHAIN_ENTRY, DeviceKeys, RootKey, Signer, signed_bytes

ENTRIES = 10_000
DEVICES = 12
ADMINS = 3


class Life:
    """A household that lives long. `heads` are what the next entry follows."""

    def __init__(self) -> None:
        self.root = RootKey(b"bench of a chain, a root's seed!")
        self.raws = [make_genesis(self.root, 1)]
        self.heads = [entry_hash(self.raws[0])]
        self.made = 0
        self.devices = [self.new_device() for _ in range(DEVICES)]
        for at, keys in enumerate(self.devices):
            self.add(keys, self.root if at == 0 else self.devices[0], "admin" if at < ADMINS else "member")
        self.epoch: bytes | None = None

    def new_device(self) -> DeviceKeys:
        self.made += 1
        return DeviceKeys.from_entropy(blake3(b"device %d" % self.made).digest(64))

    def say(self, signer: Signer, kind: str, body: dict[str, Any], heads: list[bytes] | None = None) -> bytes:
        """One more entry; with `heads` beside the others, without them on top of all."""
        parents = self.heads if heads is None else heads
        raw = sign_entry(signer, self.root.identity_id, parents, kind, body, len(self.raws))
        self.raws.append(raw)
        name = entry_hash(raw)
        self.heads = [name] if heads is None else [*self.heads, name]
        return name

    def certificate(self, keys: DeviceKeys) -> dict[str, Any]:
        return {"name": f"device {keys.public.hex()[:12]}", "sign": keys.public, "box": keys.box_public,
                "expires": len(self.raws), "ephemeral": None, "epochs": []}

    def add(self, keys: DeviceKeys, signer: Signer, role: str, heads: list[bytes] | None = None) -> None:
        self.say(signer, "device.add", {**self.certificate(keys), "role": role, "tier": "laptop"}, heads)

    def renew(self, at: int) -> None:
        keys, signer = self.devices[at], self.devices[(at + 1) % ADMINS]
        self.say(signer, "device.rotate", {**self.certificate(keys), "device": keys.public})

    def new_epoch(self) -> None:
        readers = [self.root.public, *(keys.public for keys in self.devices)]
        previous = [] if self.epoch is None else [[self.epoch, bytes(48)]]
        body = {"ephemeral": self.devices[0].box_public, "check": bytes(32), "previous": previous,
                "wraps": sorted([public, bytes(48)] for public in readers)}
        self.epoch = self.say(self.devices[1], "epoch.new", body)

    def year(self, number: int) -> None:
        """Renewals, a device replaced by two admins that are apart, an epoch; now and then the root's word."""
        for at in range(DEVICES):
            self.renew(at)
        at = ADMINS + number % (DEVICES - ADMINS)
        fork = list(self.heads)
        new = self.new_device()
        self.say(self.devices[0], "device.revoke", {"device": self.devices[at].public, "reason": "sold"}, fork)
        self.add(new, self.devices[1], "member", fork)
        self.heads = [name for name in self.heads if name not in fork]
        self.devices[at] = new
        self.new_epoch()
        commune = {"commune": b"c" * 32, "terms": b"t" * 32, "round": number, "expires": 0}
        self.say(self.devices[2], "consent", {**commune, "decision": "in" if number % 2 else "out"})
        if number % 10 == 0:
            self.say(self.root, "checkpoint", {"note": "ten years"})


def run(bench: Bench) -> None:
    """A line of renewals, and a mixed life with branches that meet."""
    line, life = Life(), Life()
    while len(line.raws) < ENTRIES:
        line.renew(len(line.raws) % DEVICES)
    years = 0
    while len(life.raws) < ENTRIES:
        years += 1
        life.year(years)
    for what, raws in ((f"{ENTRIES:,} renewals in a line", line.raws), (f"{years} mixed years", life.raws[:ENTRIES])):
        ours: list[float] = []
        peer: list[float] = []
        for _ in range(bench.repeats):
            with timed([], ours):
                members = len(Chain.from_entries(raws).members())
            if members != DEVICES:
                raise RuntimeError(f"{members} devices live, {DEVICES} should be")
            with timed([], peer):
                for raw in raws:
                    payload, signature = canonical.decode(raw)
                    signer = payload[payload.index(b"signer") + 8 :][:32]
                    crypto_sign_open(signature + signed_bytes(SIGN_CHAIN_ENTRY, payload), signer)
        bench.row(f"{what}: verified", "CPU s", ours, "PyNaCl's signature checks", peer)
    chain, one = Chain.from_entries(life.raws[: ENTRIES - 1]), []
    for _ in range(bench.repeats):
        with timed([], one):
            chain.with_entries([life.raws[ENTRIES - 1]]).members()
    bench.row("one entry more", "CPU s", one, "none")
