"""The vault's face to the rest of the node: put, get, list, status, verify. SPEC.md, 6.

Leaves packs and heads on disk to `store`, sealing to `writer`, opening to `reader`, siblings to `replicate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hinet_node.errors import TryAgain
from hinet_node.ports import Clock, Disk, Randomness
from hinet_node.vault.items import Household, Item, OnProgress, VaultSettings, VaultStatus, VerifyReport

Source = Path | str | bytes
"""Where the content comes from: bytes, or the path of a file (read in pieces of one chunk)."""


class Vault:
    """One device's replica. Names are bytes and kept as they are. All methods may be called from any task of the
    agent's trio run; writers wait for each other."""

    @classmethod
    async def open(cls, disk: Disk, randomness: Randomness, clock: Clock, household: Household,
                   settings: VaultSettings | None = None) -> Vault:
        """Read what the home holds under `vault/`; an empty home is an empty vault. The index is rebuilt when it is
        missing, damaged or out of step. Works on a full disk. A damaged head or pack is set aside and reported."""
        raise TryAgain("The vault is not ready yet.")

    async def close(self) -> None:
        """Give back the index's file. Nothing needs to be flushed: what was acknowledged is on disk."""

    async def put(self, name: bytes, source: Source, *, on_progress: OnProgress | None = None) -> Item:
        """Store one file; returns once it is durable here (packs, then head). The same content again changes nothing.

        Errors: `NotAuthorised` without the current epoch's key (a keeper); `NoSpace`; `UsageError` for an empty or
        over-long name (1 to 4096 bytes) or an unreadable source. After an error the vault is as it was before.
        """
        return (await self.put_many({name: source}, on_progress=on_progress))[0]

    async def put_many(self, files: Mapping[bytes, Source] | Iterable[tuple[bytes, Source]], *,
                       on_progress: OnProgress | None = None) -> list[Item]:
        """Store many files under one head: after a crash all of them are there or none. Small ones share packs."""
        raise TryAgain("The vault is not ready yet.")

    async def remove(self, names: Iterable[bytes]) -> int:
        """Take files out of the view (a tombstone replicates; the content stays restorable). How many were there."""
        raise TryAgain("The vault is not ready yet.")

    async def get(self, name: bytes) -> bytes:
        """The whole content, verified. Errors: `UsageError` code E_NO_SUCH_FILE; `IntegrityError` when a pack is
        damaged (it is set aside and fetched again from a sibling: try again later); `NotAuthorised` on a keeper."""
        raise TryAgain("The vault is not ready yet.")

    async def get_to(self, name: bytes, path: Path | str, *, on_progress: OnProgress | None = None) -> Item:
        """Write the content to `path`, which appears whole or not at all; memory stays bounded. An existing file is
        replaced, a symbolic link at `path` is replaced and not followed. Errors: as `get`; `NoSpace`."""
        raise TryAgain("The vault is not ready yet.")

    async def restore(self, prefix: bytes, folder: Path | str, *, on_progress: OnProgress | None = None) -> list[Item]:
        """Write every file under `prefix` below `folder`, by its name. Names that would leave the folder (absolute,
        `..`, through a link) are refused before anything is written: `UsageError` code E_NAME_ESCAPES."""
        raise TryAgain("The vault is not ready yet.")

    async def list(self, prefix: bytes = b"") -> list[Item]:
        """The files whose shown name begins with `prefix`, sorted by name; concurrent edits each have their own."""
        raise TryAgain("The vault is not ready yet.")

    async def status(self) -> VaultStatus:
        """Counts, who is behind, copies of each head, and what the owner should know. Cheap."""
        raise TryAgain("The vault is not ready yet.")

    async def verify(self, *, deep: bool = False, on_progress: OnProgress | None = None) -> VerifyReport:
        """Check every pack against its name (a keeper can), with `deep` also that every file decrypts. A damaged pack
        is set aside as `….damaged` and fetched again from a sibling by the replicator."""
        raise TryAgain("The vault is not ready yet.")

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` (quick, no await) after each change of heads or packs; returns what ends it."""
        raise TryAgain("The vault is not ready yet.")
