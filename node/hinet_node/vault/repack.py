"""Moving needed chunks out of packs that are mostly dead, small or of an earlier epoch into new ones. SPEC.md, 6.10.

A moved chunk keeps its id, so no tree changes. Each new pack is durable before a head names it, and the packs that it
replaces stay until they are collected like any others: a kill at any point loses nothing, and the next marking finds
the packs that were finished and goes on behind them. Leaves which chunks are needed to `marking`, giving the old packs
up to `collect`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from blake3 import blake3

from hinet_node.errors import IntegrityError
from hinet_node.vault.choosing import Choice, PackUse, moved_home, rows_at_home
from hinet_node.vault.marking import Marks
from hinet_node.vault.packstore import outgoing_path, pack_path
from hinet_protocol.packs import PackBuilder, slots_max

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore

DEAD_SHARE = 0.5
"""A pack is rewritten when more of its chunks' bytes than this are dead: freeing a byte costs at most one written."""
SMALL_BYTES = 1 << 20
SMALL_MAX = 16
"""So many packs below `SMALL_BYTES` may stay; one more, and all of them are merged."""
_FLUSH_BYTES = 4 << 20
_BUILDERS_MAX = 4
OnBytes = Callable[[int], None]


def mostly_dead(choice: Choice) -> list[PackUse]:
    """The packs worth rewriting for what is dead in them."""
    return [use for use in _homes(choice) if use.stored_bytes and
            1 - choice.at_home.get(use.number, 0) / use.stored_bytes > DEAD_SHARE]


def too_many_small(choice: Choice, *, mine_only: bool) -> list[PackUse]:
    """The small packs, if there are too many of them."""
    found = [use for use in _homes(choice) if use.size_bytes < SMALL_BYTES and (use.mine or not mine_only)]
    return found if len(found) > SMALL_MAX else []


def of_epochs(choice: Choice, epochs: Collection[bytes], device: bytes) -> list[PackUse]:
    """The packs of these epochs, in an order of this device's own: two that reseal at once meet in the middle."""
    found = [use for use in _homes(choice) if use.epoch in epochs]
    return sorted(found, key=lambda use: blake3(device + use.name).digest())


def _homes(choice: Choice) -> list[PackUse]:
    return [choice.uses[name] for name in sorted(choice.homes)]


class Mover:
    """Seals chunks under the current epoch, with the ids that they have. `packs` are the new packs, durable each."""

    def __init__(self, core: VaultCore) -> None:
        self._core = core
        self._epoch_id, self._epoch_key = core.publisher.epoch()
        self._builders: dict[bytes, tuple[PackBuilder, str]] = {}
        self._pending: dict[bytes, int] = {}
        self.packs: set[bytes] = set()
        core.pins.hold(self)

    def add(self, kind: int, chunk_id: bytes, plaintext: bytes, id_epoch: bytes) -> list[bytes]:
        """Seal one chunk whose id is of that epoch; the names of the packs that are finished by it."""
        foreign = b"" if id_epoch == self._epoch_id else id_epoch
        finished = []
        if foreign not in self._builders:
            if len(self._builders) == _BUILDERS_MAX:
                finished.append(self._end(next(iter(self._builders))))
            self._begin(foreign)
        builder, part = self._builders[foreign]
        if chunk_id in builder:
            return finished
        builder.add(kind, chunk_id, plaintext, foreign=bool(foreign))
        self._pending[foreign] += len(plaintext)
        if self._pending[foreign] >= _FLUSH_BYTES:
            self._core.disk.append(part, builder.take())
            self._pending[foreign] = 0
        if builder.size_bytes >= self._core.settings.pack_bytes or builder.slot_count >= slots_max:
            finished.append(self._end(foreign))
        return finished

    def finish(self) -> list[bytes]:
        """Close what is open."""
        return [self._end(foreign) for foreign in list(self._builders)]

    def drop(self) -> None:
        """Throw away what is not finished."""
        for _, part in self._builders.values():
            self._core.disk.remove(part)
        self._builders.clear()

    def _begin(self, foreign: bytes) -> None:
        draw = self._core.randomness.draw
        self._builders[foreign] = (PackBuilder(self._epoch_id, self._epoch_key, draw(32), foreign),
                                   outgoing_path(draw(8)))
        self._pending[foreign] = 0

    def _end(self, foreign: bytes) -> bytes:
        builder, part = self._builders.pop(foreign)
        last, summary = builder.finish()
        self._core.disk.append(part, last)
        self._core.disk.commit(part, pack_path(summary.name))
        self._core.store.index.add_pack(summary.name, summary.size_bytes, summary.slots, epoch=self._epoch_id,
                                        mine=True)
        self.packs.add(summary.name)
        return summary.name


def move(core: VaultCore, marks: Marks, picked: Sequence[PackUse], bytes_max: int, on_bytes: OnBytes = lambda count:
         None) -> Mover:
    """Move the needed chunks of these packs, in their order, until so many bytes are moved; the homes in `marks` follow
    as packs are finished. Whoever takes the mover has its packs pinned. Errors: `NoSpace`, `NotAuthorised`."""
    mover, moved = Mover(core), 0
    try:
        for use in picked:
            if moved >= bytes_max:
                break
            for chunk_id, kind, id_epoch in rows_at_home(marks.index, use):
                try:
                    plain = core.reader.read(chunk_id)
                except IntegrityError:
                    continue  # damaged: it stays where it is until a whole copy comes
                _settle(marks, mover.add(kind, chunk_id, plain, id_epoch))
                moved += len(plain)
                on_bytes(len(plain))
        _settle(marks, mover.finish())
    except BaseException:
        mover.drop()
        raise
    return mover


def bytes_to_move(choice: Choice, picked: Iterable[PackUse]) -> int:
    """Stored bytes of what would move."""
    return sum(choice.at_home.get(use.number, 0) for use in picked)


def _settle(marks: Marks, finished: Iterable[bytes]) -> None:
    for name in finished:
        moved_home(marks.index, name)
