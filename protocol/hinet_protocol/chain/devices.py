"""The devices as a chain sees them. SPEC.md, 3.4. What their certificates allow is judged in `rules`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hinet_protocol.chain.bodies import DEVICE_REVOKE
from hinet_protocol.chain.graph import Graph, Node
from hinet_protocol.chain.standing import Standing
from hinet_protocol.identity import device_id, fingerprint, peer_id


@dataclass(frozen=True)
class Device:
    """One device as the chain sees it. `expires_s` is in unix seconds, 0 for never.

    `entry` is the certificate in force: the last renewal, or what brought the key in, which `added_s`, `added_by` and
    `height` tell of. `revoked`: a removal counts; if it was for new keys, `replaced_by` is the new one. `void`: its
    certificate does not count, because whoever signed it had been revoked without knowing this entry. `live` is
    neither. `name` is unique in the household: of several live devices that took the same name apart from each other,
    only the senior one keeps it bare.
    """

    name: str
    public: bytes
    box_public: bytes
    role: str
    tier: str
    expires_s: int
    entry: bytes
    height: int
    added_s: int
    added_by: bytes
    revoked: bool
    void: bool
    revoke_reason: str = ""
    replaced_by: bytes | None = None

    @property
    def live(self) -> bool:
        """It belongs to the household."""
        return not self.revoked and not self.void

    @property
    def peer_id(self) -> str:
        """Its libp2p peer id."""
        return peer_id(self.public)

    @property
    def fingerprint(self) -> str:
        """Eight characters for a person to compare."""
        return fingerprint(self.public)

    @property
    def device_id(self) -> str:
        """Its key as a name for files."""
        return device_id(self.public)

    def expired(self, now_s: int) -> bool:
        """Its certificate has run out by this clock."""
        return self.expires_s != 0 and now_s >= self.expires_s

    def role_at(self, now_s: int) -> str:
        """Its role by this clock: an expired certificate gives the rights of a keeper."""
        return "keeper" if self.expired(now_s) else self.role


def devices_of(graph: Graph, settled: Standing) -> dict[bytes, Device]:
    """All devices by key, seniors first, with the names made unique."""
    found: dict[bytes, Device] = {}
    names: set[str] = set()
    for public in sorted(settled.ranks, key=settled.ranks.__getitem__):
        device = _device(graph, settled, public)
        if device.live:
            if device.name.casefold() in names:
                device = replace(device, name=f"{device.name}-{device.fingerprint[:4].lower()}")
            names.add(device.name.casefold())
        found[public] = device
    return found


def _device(graph: Graph, settled: Standing, public: bytes) -> Device:
    first, certificate = settled.introduction(public), settled.certificate(public)
    if first is None or certificate is None:
        # Of certificates that all fell, the lowest is shown, not the one that came first.
        first = certificate = min(graph.introductions_of(public, graph.everything), key=lambda node: node.place)
    removals = sorted(settled.removals[public], key=lambda node: node.place)
    body = certificate.entry.body
    return Device(
        name=body["name"],
        public=public,
        box_public=body["box"],
        role=first.role,
        tier=first.tier,
        expires_s=body["expires"],
        entry=certificate.hash,
        height=first.height,
        added_s=first.entry.time_s,
        added_by=first.entry.signer,
        revoked=bool(removals),
        void=public not in settled.introductions,
        revoke_reason=_reason(removals),
        replaced_by=_successor(settled, removals),
    )


def _reason(removals: list[Node]) -> str:
    reasons = [node.entry.body["reason"] for node in removals if node.entry.kind == DEVICE_REVOKE]
    return reasons[0] if reasons else "It has new keys." if removals else ""


def _successor(settled: Standing, removals: list[Node]) -> bytes | None:
    """The new key of a device that got one, if that key belongs."""
    keys = [node.entry.certifies for node in removals]
    return next((key for key in keys if key is not None and settled.live(key)), None)
