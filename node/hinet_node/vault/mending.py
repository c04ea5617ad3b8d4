"""Repairing with what this device has: packs put back in their places, the way cleared for those that come, what was
set aside taken away once a whole copy is there. SPEC.md, 6.7.

Needs no key and no sibling. Doing it twice does nothing the second time. Leaves fetching to `repairing`, damaged packs
that nobody else has to `salvage`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from hinet_node.errors import IntegrityError, NoSpace
from hinet_node.vault.checking import missing_packs
from hinet_node.vault.headcheck import aside_heads, closed_folders, open_again
from hinet_node.vault.headstore import HEADS
from hinet_node.vault.packfolder import ASIDE, PACKS, aside_path, look, pack_path
from hinet_node.vault.report import (
    CLEARED,
    FOLDER,
    HEAD,
    PACK,
    PUT_BACK,
    STILL_CLOSED,
    Mended,
)
from hinet_protocol.packs import pack_bytes_max

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore


def mend(core: VaultCore) -> list[Mended]:
    """All that can be done at once. Errors: `NoSpace`, `OSError` of a disk that can't be written."""
    done = _open_folders(core)
    done += _put_back(core)
    done += clear_leftovers(core)
    return done


def _open_folders(core: VaultCore) -> list[Mended]:
    """Something that is no folder in the place of one goes aside; one that this user may not open stays."""
    done = []
    closed = {**look(core.disk).closed, **closed_folders(core.disk)}
    for path, why in sorted(closed.items()):
        if path in (PACKS, HEADS) or "may not" in why or "disk fails" in why:
            done.append(Mended(FOLDER, STILL_CLOSED, path, f"{path} can't be read: {why}. "
                               f"{open_again(core.disk, path)}"))
            continue
        core.disk.move(path, path + ASIDE)
        done.append(Mended(FOLDER, CLEARED, path, f"What stood in place of the folder {path} is now {path}{ASIDE}."))
    return done


def _put_back(core: VaultCore) -> list[Mended]:
    """Whole packs that lie under another name, or that were set aside and are whole after all (a disk that failed for a
    while), go to their places."""
    missing, done = set(missing_packs(core)), []
    if not missing:
        return []
    found = look(core.disk)
    for path in [*found.strays, *(aside_path(name) for name in found.aside)]:
        try:
            if core.disk.size(path) > pack_bytes_max:
                continue
            name = core.store.digest(path)
        except (OSError, IntegrityError):
            continue
        if name not in missing:
            continue
        clear_way(core, [name])
        size = core.disk.size(path)
        with core.store.arriving(name):
            core.disk.move(path, pack_path(name))
            core.store.enter(name, size)
        core.settle("E_PACK_DAMAGED", name)
        missing.discard(name)
        done.append(Mended(PACK, PUT_BACK, pack_path(name), f"Pack {name.hex()[:16]} lay at {path}; it is whole and "
                           "back in its place.", name))
    return done


def clear_way(core: VaultCore, names: Iterable[bytes]) -> None:
    """A folder or a link in the place of a missing pack goes aside, so that the pack can come. A file stays, whatever
    it holds: a pack that comes is put over it, and may just have been."""
    for name in names:
        path = pack_path(name)
        try:
            if core.store.holds(name) or not core.disk.exists(path):
                continue
            core.disk.size(path)
        except (IsADirectoryError, IntegrityError):
            with suppress(OSError, NoSpace):  # the pack that comes says what is wrong
                core.disk.move(path, path + ASIDE)
        except OSError:
            continue


def _sure_of_heads(core: VaultCore) -> bool:
    """Whether the heads that are here are all that should be."""
    return bool(core.heads.current()) and not core.in_doubt() and not closed_folders(core.disk) and not any(
        core.heads.misses(device, seq, head_hash) for device, seq, head_hash, _ in aside_heads(core.disk))


def clear_leftovers(core: VaultCore) -> list[Mended]:
    """Take away what was set aside of packs that are held whole by now, or that nobody needs, and of heads that came
    again. What is no file stays: it is the owner's."""
    missing, done, found = set(missing_packs(core)), [], look(core.disk)
    for name in found.aside:
        if core.store.holds(name):
            if not core.store.matches_name(name):
                continue
        elif name in missing or not _sure_of_heads(core) or found.closed:
            continue  # without all heads nobody can say that a pack is not needed
        try:
            core.disk.size(aside_path(name))
        except (OSError, IntegrityError):
            continue
        core.store.forget_aside(name)
        core.settle("E_PACK_DAMAGED", name)
        done.append(Mended(PACK, CLEARED, aside_path(name), f"What was set aside of pack {name.hex()[:16]} is not "
                           "needed any more, and was removed.", name))
    for device, seq, head_hash, path in list(aside_heads(core.disk)):
        if core.heads.misses(device, seq, head_hash):
            continue
        core.disk.remove(path)
        done.append(Mended(HEAD, CLEARED, path, f"A damaged record of state {seq} is not needed any more, and was "
                           "removed.", head_hash))
    return done
