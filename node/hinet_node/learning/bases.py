"""The base models in this home: which are there, which one is in use, how one is installed.

A base lies in `bases/<digest>/` with its manifest `base.json`, made and checked by a worker (`hinet_tiers.base`);
`bases/current` names the one in use. A device without any derives the embedded default on first need. What a base
consists of is the models part's business. SPEC section 7.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hinet_node.errors import IntegrityError, UsageError
from hinet_node.ports import Compute, Disk

FOLDER = "bases"
CURRENT = "bases/current"
MANIFEST = "base.json"
SHORT = 12
"""Hex digits of a digest that are shown to a person."""

Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class InstalledBase:
    """A base in this home, as its manifest tells."""

    digest: str
    name: str
    parameters: int
    architecture: str
    representations: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"digest": self.digest, "name": self.name, "parameters": self.parameters,
                "architecture": self.architecture, "representations": [dict(row) for row in self.representations],
                "notes": list(self.notes)}


class Bases:
    """The bases of one home."""

    def __init__(self, disk: Disk, compute: Compute) -> None:
        self._disk = disk
        self._compute = compute

    def installed(self) -> list[InstalledBase]:
        """Every base whose manifest can be read, by digest. Weights are not looked at (a worker does, before use)."""
        found = [self._read(name) for name in self._disk.list(FOLDER)]
        return [base for base in found if base is not None]

    def current(self) -> InstalledBase | None:
        """The base in use: the selected one, or the only one."""
        installed = {base.digest: base for base in self.installed()}
        try:
            selected = self._disk.read(CURRENT).decode("ascii", "replace").strip()
        except FileNotFoundError:
            selected = ""
        if selected in installed:
            return installed[selected]
        return next(iter(installed.values())) if len(installed) == 1 else None

    def folder(self, base: InstalledBase) -> str:
        """The real path of a base's folder, for a worker."""
        return self._disk.path(f"{FOLDER}/{base.digest}")

    def find(self, beginning: str) -> InstalledBase:
        """The base whose digest or name begins so. Errors: `UsageError` E_NO_SUCH_BASE."""
        found = [base for base in self.installed()
                 if beginning and (base.digest.startswith(beginning.lower()) or base.name == beginning)]
        if len(found) != 1:
            what = f"{beginning!r} fits {len(found)} bases" if found else f"there is no base {beginning!r} here"
            raise UsageError(what, next_step="hinet-node base show", code="E_NO_SUCH_BASE")
        return found[0]

    def select(self, base: InstalledBase) -> None:
        """Use this base from now on, durably."""
        self._disk.write_atomic(CURRENT, base.digest.encode() + b"\n")

    async def ensure(self, report: Report) -> InstalledBase:
        """The base in use; the embedded default is installed when there is none. Errors: those of the worker."""
        current = self.current()
        if current is not None:
            return current
        if self.installed():
            raise UsageError("several bases are here and none is selected", next_step="hinet-node base use DIGEST",
                             code="E_NO_BASE_SELECTED")
        return await self.install(None, report)

    async def install(self, source: str | None, report: Report) -> InstalledBase:
        """Make a base from a Hugging Face folder or a GGUF file (None: the embedded default) and use it.

        Errors: the worker's refusal, which names what is wrong with the file; nothing is changed then.
        """
        async with self._compute.worker() as worker:
            result = await worker.call("base.install", {"source": source, "into": self._disk.path(FOLDER)},
                                       on_progress=report)
        base = self._read(str(result["digest"]))
        if base is None:
            raise IntegrityError(f"the base {str(result['digest'])[:SHORT]} was installed and can't be read",
                                 next_step="run it again: hinet-node base import PATH", code="E_BASE_DAMAGED")
        self.select(base)
        return base

    def _read(self, name: str) -> InstalledBase | None:
        if len(name) != 64 or not all(letter in "0123456789abcdef" for letter in name):
            return None
        try:
            manifest = json.loads(self._disk.read(f"{FOLDER}/{name}/{MANIFEST}"))
            if manifest["digest"] != name:
                return None
            return InstalledBase(digest=name, name=str(manifest["name"]), parameters=int(manifest["parameters"]),
                                 architecture=str(manifest.get("architecture", "")),
                                 representations=tuple({**row} for row in manifest["representations"]),
                                 notes=tuple(manifest.get("notes", ())))
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError, OverflowError,
                RecursionError):
            return None


def require_same(base: InstalledBase, wanted: str, what: str) -> None:
    """Refuse an artifact of another base, by name, before a byte of it is loaded. Errors: `IntegrityError`."""
    if base.digest != wanted:
        raise IntegrityError(
            f"{what} belongs to base {wanted[:SHORT]}, and this device uses {base.name} ({base.digest[:SHORT]})",
            next_step="take up the same base: hinet-node base use DIGEST, or hinet-node base import PATH",
            code="E_BASE_MISMATCH")
