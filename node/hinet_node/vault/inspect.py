"""Counting: what `vault status` says. SPEC.md, 6.7.

Reads only. Works on a keeper, without keys. Leaves verifying to `checking`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet_node.vault.checking import missing_packs
from hinet_node.vault.finding import RESERVED
from hinet_node.vault.items import DeviceState, Trouble, VaultStatus
from hinet_protocol.heads import Head
from hinet_protocol.reconcile import heads_behind, needs_of

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore


def status(core: VaultCore) -> VaultStatus:
    """The vault as this device sees it."""
    shown = core.view.shown()
    packs, packs_bytes = core.store.index.totals()
    newest = core.heads.newest()
    own = newest.get(core.household.device_public)
    missing = missing_packs(core)
    trouble = dict(core.trouble)
    for fork in core.heads.forks():
        device = fork[0].device
        trouble["E_FORK", device] = Trouble(
            "E_FORK", f"There are two different states number {fork[0].seq} of {core.name_of(device)}: it was cloned, "
            "or an old copy of it was put back. Both are kept and merged.",
            "If two machines use its key, give one of them a new one, there: hinet-node init --rekey   If it was an "
            f"old copy, say that you know: hinet-node vault accept-older --head {fork[0].hash.hex()[:12]}")
    if not missing:
        trouble = {key: value for key, value in trouble.items() if key[0] != "E_PACK_DAMAGED"}
    return VaultStatus(
        head_seq=own.seq if own else 0, packs=packs, packs_bytes=packs_bytes, files=len(shown),
        files_bytes=sum(version.size for version, _ in shown.values()),
        conflicts=sum(conflict_of is not None and not conflict_of.startswith(RESERVED)
                      for _, conflict_of in shown.values()), missing_packs=len(missing),
        devices=_devices(core, newest), copies={device: _copies(core, head, newest) for device, head in newest.items()},
        free_bytes=core.disk.free_bytes(),
        trouble=tuple(trouble[key] for key in sorted(trouble)))


def _devices(core: VaultCore, newest: dict[bytes, Head]) -> tuple[DeviceState, ...]:
    names, members = core.household.names(), core.household.members()
    seqs = {device: head.seq for device, head in newest.items()}
    trees = {head.tree_chunk for head in newest.values()}
    needed: frozenset[bytes] = frozenset()
    held: dict[bytes, int] = {}
    states = []
    for device in sorted({*members, *core.peers_hold, core.household.device_public}):
        head = newest.get(device)
        if head is not None:
            # Heads that only say "I have taken this up" do not count against anyone: equal trees are in step.
            behind: int | None = 0 if len(trees) == 1 else heads_behind(head.vector, seqs)
            if all(other.tree_chunk == head.tree_chunk or _covered(head, other) for other in newest.values()):
                behind = 0
        elif device in core.peers_hold or device == core.household.device_public:
            its = core.peers_hold.get(device, core.head_hashes())
            behind = sum(other.hash not in its for other in newest.values())
        else:
            behind = None  # it never wrote, and was not met since the start
        lacking = (0, 0)
        if behind:
            needed = needed or needs_of(core.needed_heads(), core.store.read_list).packs
            held = held or core.store.index.packs()
            lacking = _lacking(core, device, head, {name: held[name] for name in needed if name in held})
        states.append(DeviceState(device, names.get(device, ""), head.seq if head else 0, behind, behind == 0,
                                  head.time if head else 0, *lacking, head.epoch if head else b""))
    return tuple(states)


def _lacking(core: VaultCore, device: bytes, head: Head | None, needed: dict[bytes, int]) -> tuple[int, int]:
    """Count and bytes of the needed packs (name -> size) that none of the heads which the device has brings with it."""
    hashes = core.peers_hold.get(device, frozenset())
    has = [one for one in core.heads.current()
           if one.hash in hashes or (head is not None and (one.hash == head.hash or _covered(head, one)))]
    there = needs_of(has, core.store.read_list).packs
    sizes = [size for name, size in needed.items() if name not in there]
    return len(sizes), sum(sizes)


def _covered(head: Head, other: Head) -> bool:
    return dict(head.vector).get(other.device, 0) >= other.seq


def _copies(core: VaultCore, head: Head, newest: dict[bytes, Head]) -> int:
    """Devices known to hold this head whole: itself, those whose own head has taken it up, those that said so."""
    holders = {core.household.device_public, head.device}
    holders.update(device for device, other in newest.items()
                   if _covered(other, head) or other.tree_chunk == head.tree_chunk)
    holders.update(device for device, hashes in core.peers_hold.items() if head.hash in hashes)
    return len(holders)
