"""What the vault shows of itself: values only, no behaviour. SPEC.md, 6.

Leaves the stored forms to `hinet_protocol.trees` and `hinet_protocol.heads`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hinet_node.vault.finding import Notes


class Household(Protocol):
    """What the vault needs to know of the household. Read anew at each use, because the chain grows."""

    @property
    def identity_id(self) -> bytes: ...

    @property
    def device_public(self) -> bytes: ...

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """The device key's Ed25519 signature (64 bytes), as `hinet_protocol.identity.DeviceKeys.sign`."""

    def members(self) -> Mapping[bytes, str]:
        """Public key -> name of the devices that may write to the vault now: neither keepers nor revoked ones."""

    def keepers(self) -> Mapping[bytes, str]:
        """Public key -> name of the devices that hold the vault now and may not read it."""

    def names(self) -> Mapping[bytes, str]:
        """Public key -> name, of every device that ever was in the household."""

    def current_epoch(self) -> bytes | None:
        """Id (32 bytes) of the epoch that new data is sealed under; None when this device holds no key of it."""

    def epoch_keys(self) -> Mapping[bytes, bytes]:
        """Epoch id -> 32-byte key, for every epoch that this device can open; empty on a keeper."""


@dataclass(frozen=True)
class Item:
    """One file in the vault as it is shown now."""

    name: bytes
    """The name shown: a concurrent edit shows as `note.conflict-1a2b3c4d-7.md` beside `note.md`."""
    size: int
    """Bytes of the content."""
    digest: bytes
    """BLAKE3 of the content (32 bytes)."""
    device: bytes
    """Public key of the device that wrote this version."""
    time: int
    """Unix seconds by that device's clock when it wrote: for display only, never for ordering."""
    conflict_of: bytes | None = None
    """For a concurrent edit: the name that the edits compete for."""


@dataclass(frozen=True)
class DeviceState:
    """How far one device's copy of the vault is, as far as this device knows."""

    device: bytes
    name: str
    head_seq: int
    """Number of its newest head held here; 0 when it never wrote."""
    behind: int | None
    """How many heads of others it has not taken up; 0 when in step; None when it is not known. A keeper makes no heads:
    what it last said it holds counts."""
    in_step: bool
    time: int
    """Unix seconds of its newest head, by its own clock; 0 without one."""
    behind_packs: int = 0
    """Packs held here that it needs and lacks: by what it said it holds, else (not `exact`) at most so many."""
    behind_bytes: int = 0
    epoch: bytes = b""
    """The vault epoch that its newest head is sealed under: it had the chain up to there. Empty without a head."""
    exact: bool = True
    behind_since: int = 0
    """Unix seconds of the oldest head that it has not taken up, by its writer's clock; 0 when in step."""
    said: int = 0
    """When it last said what it holds, unix seconds of this device's clock; 0 when it never did."""
    keeper: bool = False


@dataclass(frozen=True)
class Trouble:
    """Something that the owner should know. `code` is stable; `next_step` says what to do."""

    code: str
    what: str
    next_step: str


@dataclass(frozen=True)
class VaultStatus:
    """The vault as this device sees it."""

    head_seq: int
    """Number of this device's own newest head; 0 before the first."""
    packs: int
    packs_bytes: int
    files: int
    """Files shown, the reserved ones under `.hinet/` included; 0 on a keeper, which can't know."""
    files_bytes: int
    conflicts: int
    missing_packs: int
    """Packs that accepted or announced heads need and that are not held here."""
    devices: tuple[DeviceState, ...]
    copies: Mapping[bytes, int]
    """Device -> on how many devices its newest head is known to be whole, this one included."""
    free_bytes: int
    trouble: tuple[Trouble, ...]
    damaged_packs: int = 0
    """Those of the missing packs that were set aside here because they are damaged."""
    copies_least: int = 0
    """On how many devices that needed pack is which is on the fewest, this one included; 0 without packs."""
    single_packs: int = 0
    """Packs that only this device is known to hold."""
    single_bytes: int = 0
    other_devices: int = 0
    """Other devices that belong to the household now."""
    verified_packs: int = 0
    """Packs that were read again and found whole since they came."""
    verified_oldest: int = 0
    """When the one of these was that was verified longest ago, and when the last one; 0 without."""
    verified_newest: int = 0
    verify_days: int = 0
    """Within so many days every pack is verified in the background; 0 where nothing does that."""

    def as_json(self) -> dict[str, object]:
        return {
            "schema": "hinet.vault-status/1", "head_seq": self.head_seq, "packs": self.packs,
            "packs_bytes": self.packs_bytes, "files": self.files, "files_bytes": self.files_bytes,
            "conflicts": self.conflicts, "missing_packs": self.missing_packs, "free_bytes": self.free_bytes,
            "devices": [{"device": d.device.hex(), "name": d.name, "head_seq": d.head_seq, "behind": d.behind,
                         "behind_packs": d.behind_packs, "behind_bytes": d.behind_bytes, "in_step": d.in_step,
                         "epoch": d.epoch.hex(), "time": d.time, "copies": self.copies.get(d.device, 0),
                         "exact": d.exact, "behind_since": d.behind_since, "said": d.said, "keeper": d.keeper}
                        for d in self.devices],
            "trouble": [{"code": t.code, "what": t.what, "next": t.next_step} for t in self.trouble],
            "damaged_packs": self.damaged_packs, "copies_least": self.copies_least, "single_packs": self.single_packs,
            "single_bytes": self.single_bytes, "other_devices": self.other_devices,
            "verified_packs": self.verified_packs, "verified_oldest": self.verified_oldest,
            "verified_newest": self.verified_newest, "verify_days": self.verify_days,
        }


@dataclass(frozen=True)
class AddReport:
    """What `Vault.add_files` did."""

    files: int
    """Files below the roots that are in the vault now, as they are."""
    bytes: int
    unchanged: int
    """So many of them look as they did when they were last read, and were not read again."""
    new_versions: int
    notes: Notes
    """What was not taken, and what changed while it was read."""

    @property
    def whole(self) -> bool:
        return not (self.notes.left_out_count or self.notes.changed_count)


@dataclass(frozen=True)
class Progress:
    """How far a long piece of work is. `bytes_total` is None while it is not known."""

    what: str
    bytes_done: int
    bytes_total: int | None
    files_done: int = 0
    files_total: int | None = None


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class VaultSettings:
    """Sizes and times of one vault. The defaults are those of SPEC.md, 6; tests use small ones."""

    chunk_bytes: int = 4 << 20
    pack_bytes: int = 32 << 20
    """A pack is closed when its chunks reach this."""
    reserve_bytes: int = 1 << 30
    """Free disk space that writing and replicating leave alone."""
    sync_interval_s: float = 30.0
    request_timeout_s: float = 60.0
    requests_outstanding: int = 8
    """Pieces asked for at once from one sibling."""
    bulk_bytes_min: int = 1 << 20
    """Fewer bytes than these come over the session, more over a bulk connection."""
    rate: int = 0
    """Bytes of packs a second, each way, at most; 0 for no limit."""
    heads_kept: int = 256
    """Newest head records kept per device."""
    collect_interval_s: float = 600.0
    """How often the agent looks for packs that nobody retains."""
    keep_days: int = 30
    """So long at least what was replaced or removed can be put back."""
    keep_versions: int = 3
    """So many past versions of each file are always kept."""
    idle_s: float = 86_400.0
    """For so long of this device's running time nobody must have retained a pack that is deleted."""
    keeper_idle_s: float = 31 * 86_400.0
    """The same on a keeper."""
    confirm_s: float = 3_600.0
    """A head that gave packs up is followed by one that says so again after so much running time."""
    index_path: str | None = None
    """Where SQLite keeps the cache; `:memory:` in simulations; None for `vault/index.sqlite` in the home."""
