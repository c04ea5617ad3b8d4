"""Versions that vanish because two machines used one device key are written anew, so that they stay. SPEC.md, 6.11.

A version names what its writer has seen by numbers, and under a copied key two versions may bear one number. Only the
past tells which of them was seen. Leaves noticing that a version was replaced to `view`, publishing to `publish`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hinet_protocol.heads import Head, contradictions
from hinet_protocol.past import PastRow, includes
from hinet_protocol.trees import Version

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore

_READS_MAX = 4_096
"""Chunks of past that one look opens; beyond that, numbers are believed."""


class Twins:
    """Blocks on the disk; used under the vault's writing lock."""

    def __init__(self, core: VaultCore) -> None:
        self._core = core
        self._due: list[PastRow] = []
        self._copied_itself = False

    def met(self, heads: Iterable[Head]) -> None:
        """These heads came from siblings: is one of them this device's own, another machine made it."""
        own = self._core.household.device_public
        self._copied_itself |= any(head.device == own for head in heads)

    def suspects(self) -> frozenset[bytes]:
        """The devices whose numbers may stand for more than one version."""
        forked = {group[0].device for group in contradictions(self._core.heads.current())}
        return frozenset(forked | ({self._core.household.device_public} if self._copied_itself else set()))

    def look(self, replaced: Iterable[PastRow]) -> None:
        """Of versions that were just replaced, remember those that nobody can have seen."""
        left = _READS_MAX

        def read(chunk_id: bytes) -> tuple[PastRow, ...] | None:
            nonlocal left
            left -= 1
            return self._core.history.read(chunk_id) if left >= 0 else None

        for name, version in replaced:
            if not version.deleted and not self._stands(name, version):
                replacing = [one for one in self._core.view.tree.get(name, ()) if one.replaces(version)]
                if replacing and all(includes(one, version, read) is False for one in replacing):
                    self._due.append((name, version))

    def due(self) -> int:
        """How many such versions there are."""
        self._due = [(name, version) for name, version in self._due if not self._stands(name, version)]
        return len(self._due)

    def anew(self, seq: int) -> list[PastRow]:
        """These versions, one of each name, as this device's own in its head `seq`: concurrent with what hid them."""
        own, found = self._core.household.device_public, dict[bytes, Version]()
        for name, version in self._due:
            found.setdefault(name, replace(version, device=own, counter=seq))
        return list(found.items())

    def _stands(self, name: bytes, version: Version) -> bool:
        return any(one.same_content(version) for one in self._core.view.tree.get(name, ()))
