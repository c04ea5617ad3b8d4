"""Resealing: what is sealed under earlier epochs is moved under the current one, on request. SPEC.md, 6.10.

    vault/reseal    the epochs that the owner wants to be rid of, as text, one id a line; asked for until withdrawn

The file is all that is remembered: what is left to do is told by the packs themselves, so work goes on where it stopped
after a kill, and begins again when a device that was away brings packs of such an epoch. Two devices that reseal at
once take the packs in orders of their own and skip what the other has done. Leaves moving to `repack`, giving up the
old packs to `collect`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hinet_node.vault import repack
from hinet_node.vault.choosing import Choice
from hinet_node.vault.collect import Rewrite
from hinet_node.vault.marking import Marks

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore

_FILE = "vault/reseal"
_LINE = re.compile(r"[0-9a-f]{64}")
PACKS_A_STEP = 32
OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class ResealStatus:
    """How far it is."""

    asked: bool
    """Whether the owner has asked for it."""
    left_packs: int
    """Packs under epochs to be rid of (all earlier ones, if it was not asked for) that are needed, or may be."""
    left_bytes: int
    waiting_packs: int
    """Packs under such epochs that are given up, and go when all devices agree."""
    waiting_bytes: int

    @property
    def done(self) -> bool:
        return self.left_packs == 0

    def as_json(self) -> dict[str, object]:
        return {"asked": self.asked, "done": self.done, "left_packs": self.left_packs, "left_bytes": self.left_bytes,
                "waiting_packs": self.waiting_packs, "waiting_bytes": self.waiting_bytes}


class Reseal:
    """Blocks on the disk."""

    def __init__(self, core: VaultCore) -> None:
        self._core = core

    def start(self) -> ResealStatus:
        """Ask for it: all epochs but the current one. Errors: `NotAuthorised`, `NoSpace`."""
        current, _ = self._core.publisher.epoch()
        epochs = sorted(({*self._core.household.epoch_keys()} | self._epochs_held()) - {current})
        self._core.disk.write_atomic(_FILE, "".join(f"{epoch.hex()}\n" for epoch in epochs).encode())
        return self.status()

    def stop(self) -> ResealStatus:
        """Withdraw it; what is done stays done."""
        self._core.disk.remove(_FILE)
        return self.status()

    def asked(self) -> frozenset[bytes] | None:
        """The epochs to be rid of, the current one never among them; None when nobody asked."""
        try:
            text = self._core.disk.read(_FILE).decode("ascii", "replace")
        except FileNotFoundError:
            return None
        return frozenset(bytes.fromhex(line) for line in text.split("\n") if _LINE.fullmatch(line)) - {
            self._core.household.current_epoch()}

    def status(self) -> ResealStatus:
        """Cheap: by what the index says of the packs."""
        asked = self.asked()
        epochs = self._epochs_held() - {self._core.household.current_epoch()} if asked is None else asked
        left = [0, 0, 0, 0]
        for name, size, epoch in self._packs():
            if epoch in epochs:
                at = 2 if name in self._core.ledger.unneeded else 0
                left[at] += 1
                left[at + 1] += size
        return ResealStatus(asked is not None, *left)

    def due(self) -> bool:
        """Whether there is something to do that was asked for and that this device can do."""
        return self.asked() is not None and self._core.may_write() and not self.status().done

    def rewrite(self, on_bytes: OnBytes = lambda count: None) -> Rewrite:
        """For one step: move so much of what is left, with room checked first. Errors: `NoSpace`."""
        def work(marks: Marks, choice: Choice) -> repack.Mover | None:
            core = self._core
            picked = repack.of_epochs(choice, self.asked() or frozenset(), core.household.device_public)
            if not picked:
                return None
            bytes_max = PACKS_A_STEP * core.settings.pack_bytes
            core.check_room(min(bytes_max, repack.bytes_to_move(choice, picked)))
            return repack.move(core, marks, picked, bytes_max, on_bytes)
        return work

    def _packs(self) -> list[tuple[bytes, int, bytes]]:
        return self._core.store.index.run(lambda db: db.execute(
            "SELECT name, size, epoch FROM packs WHERE length(epoch) = 32").fetchall())

    def _epochs_held(self) -> set[bytes]:
        return {epoch for _, _, epoch in self._packs()}
