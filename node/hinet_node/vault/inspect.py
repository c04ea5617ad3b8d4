"""Counting: what `vault status` says. SPEC.md, 6.7.

Reads only. Works on a keeper, without keys. Leaves verifying to `checking`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet_node.vault.checking import missing_packs
from hinet_node.vault.finding import RESERVED
from hinet_node.vault.headcheck import open_again
from hinet_node.vault.holdings import Copies
from hinet_node.vault.items import Trouble, VaultStatus
from hinet_node.vault.packfolder import look

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore

_CLOSED_TOLD_MAX = 8


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
    trouble.update({(one.code, one.what.encode()): one for one in _own_trouble(core)})
    if not missing:
        trouble = {key: value for key, value in trouble.items() if key[0] != "E_PACK_DAMAGED"}
    damaged = len(set(look(core.disk).aside).intersection(missing)) if missing else 0
    if damaged and not any(code == "E_PACK_DAMAGED" for code, _ in trouble):
        trouble["E_PACK_DAMAGED", b""] = Trouble(
            "E_PACK_DAMAGED", f"{damaged} {'pack is' if damaged == 1 else 'packs are'} damaged on this device, and set "
            "aside.", "hinet-node vault repair")
    copies = Copies(core, newest)
    spread, held = copies.spread(), core.store.index.packs()
    verified = core.store.notes.verified(held, core.publisher.now())
    return VaultStatus(
        head_seq=own.seq if own else 0, packs=packs, packs_bytes=packs_bytes, files=len(shown),
        files_bytes=sum(version.size for version, _ in shown.values()),
        conflicts=sum(conflict_of is not None and not conflict_of.startswith(RESERVED)
                      for _, conflict_of in shown.values()), missing_packs=len(missing),
        devices=copies.devices(), copies={device: copies.of_head(head) for device, head in newest.items()},
        free_bytes=core.disk.free_bytes(), trouble=tuple(trouble[key] for key in sorted(trouble)),
        damaged_packs=damaged, copies_least=spread.least, single_packs=spread.single_packs,
        single_bytes=spread.single_bytes, other_devices=copies.others, verified_packs=verified.checked,
        verified_oldest=verified.oldest_s, verified_newest=verified.newest_s, verify_days=core.scrub_days)


def _own_trouble(core: VaultCore) -> list[Trouble]:
    """What is wrong with this device's own records and folders."""
    found = []
    if core.heads.lost():
        found.append(Trouble(
            "E_VAULT_DOUBT", "This device's newest record of its own vault is damaged or gone. It writes nothing until "
            "that is mended; what siblings write still comes.", "hinet-node vault repair"))
    for path, why in sorted({**core.store.closed, **core.heads.closed}.items())[:_CLOSED_TOLD_MAX]:
        found.append(Trouble("E_VAULT_CLOSED", f"{path} can't be read: {why}.", open_again(core.disk, path)))
    return found
