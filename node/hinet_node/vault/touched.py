"""Which files a damaged or missing pack touches, by name; none on a keeper, which can't know. SPEC.md, 6.7.

Made from the view and the index at one moment. Leaves finding the damage to `checking`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING

from hinet_node.errors import IntegrityError, NotAuthorised
from hinet_protocol.trees import Version

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore


class Touched:
    """Files and the chunks that they need. Pack lists of chunks (very large files) are opened only when asked for."""

    def __init__(self, core: VaultCore) -> None:
        self._core = core
        self._needs: dict[bytes, frozenset[bytes]] | None = None

    @cached_property
    def _all(self) -> list[tuple[bytes, Version]]:
        if not self._core.household.epoch_keys():
            return []
        return [(name, version) for name, (version, _) in sorted(self._core.view.shown().items()) if version.chunks]

    @cached_property
    def single(self) -> dict[bytes, list[tuple[bytes, bytes]]]:
        """Chunk id -> (name, digest) of the files that consist of this chunk alone."""
        found: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for name, version in self._all:
            if _is_single(version):
                found.setdefault(version.chunks, []).append((name, version.digest))
        return found

    @cached_property
    def longer(self) -> list[tuple[bytes, Version]]:
        """The other files, empty ones left out."""
        return [(name, version) for name, version in self._all if not _is_single(version)]

    def files_of_pack(self, pack: bytes) -> tuple[bytes, ...]:
        """The files that need a chunk which only this pack held, as far as its slots are known."""
        held = {slot.chunk_id for slot in self._core.store.notes.slots_aside(pack)}
        return self.files_with({chunk for chunk in held if self._core.store.index.pack_of(chunk) is None})

    def files_with(self, chunks: Collection[bytes]) -> tuple[bytes, ...]:
        """The files that need one of these chunks."""
        return tuple(name for name, needed in self._needed().items() if not needed.isdisjoint(chunks)) if chunks else ()

    def losses(self, files: Collection[bytes], chunks: Collection[bytes]) -> list[tuple[bytes, int, int]]:
        """Of these files: (name, how many of their chunks are among these, how many they have)."""
        needed = self._needed()
        return [(name, len(needed[name].intersection(chunks)), len(needed[name])) for name in files]

    def files_lacking(self) -> tuple[bytes, ...]:
        """The files of which a chunk is not held at all."""
        held = self._core.store.index.ids()
        return tuple(name for name, version in self._all if not self._chunks(version) <= held)

    def _needed(self) -> dict[bytes, frozenset[bytes]]:
        if self._needs is None:
            self._needs = {name: self._chunks(version) for name, version in self._all}
        return self._needs

    def _chunks(self, version: Version) -> frozenset[bytes]:
        found = set(version.chunk_ids())
        if version.indirect:
            for list_id in tuple(found):
                try:
                    ids = self._core.reader.read(list_id)
                except (IntegrityError, NotAuthorised):
                    continue  # the list itself is lacking, which is told by its own id
                found.update(ids[at:at + 32] for at in range(0, len(ids), 32))
        return frozenset(found)


def _is_single(version: Version) -> bool:
    return len(version.chunks) == 32 and not version.indirect
