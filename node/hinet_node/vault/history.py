"""What stood in the vault before: the history of a file, recent changes, and which version to put back. SPEC.md, 6.3.

Reads only, and no more chunks than versions are asked for. Leaves writing to `edits`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from hinet_node.errors import IntegrityError, NodeError, NotAuthorised, UsageError
from hinet_node.vault.edits import fits
from hinet_node.vault.finding import RESERVED
from hinet_protocol.errors import TreeMalformed
from hinet_protocol.past import PastRow, Step, decode_past, moved_to, walk
from hinet_protocol.trees import Version, version_hash

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore

CHANGES_MAX = 10_000
"""Versions of one file that are looked through for the one wanted."""


@dataclass(frozen=True)
class Change:
    """One version in a history. `what` is `added`, `changed`, `removed`, `renamed`, `restored` or `settled`."""

    name: bytes
    version: Version
    what: str
    time: int
    """As the history is ordered by: its own clock's, and not later than what came after it, nor than now."""
    came_from: bytes | None
    """The name before a renaming."""
    stands: bool
    """Whether it is a version of now: shown, or beside the one shown."""
    ends: bool
    """Whether older versions were there and are not held any more."""

    @property
    def id(self) -> str:
        return version_hash(self.version).hex()


class History:
    """The past as this device can read it. Blocks on the disk."""

    def __init__(self, core: VaultCore) -> None:
        self._core = core

    def of_file(self, name: bytes) -> Iterator[Change]:
        """Every version of one file, newest first, across renamings; a removed file's too. A concurrent edit's shown
        name stands for that version. Errors: `UsageError` E_NO_SUCH_FILE."""
        return self._changes(self._rows_of(name))

    def of_folder(self, prefix: bytes) -> Iterator[Change]:
        """What changed under a prefix, newest first, removed files included; the machine's own names only if asked."""
        tree = self._core.view.tree
        return self._changes([(name, version) for name in sorted(tree) if name.startswith(prefix)
                              and (not name.startswith(RESERVED) or prefix.startswith(RESERVED))
                              for version in tree[name]])

    def holds(self, name: bytes) -> bool:
        """Whether there is, or was, a file of exactly this name."""
        return name in self._core.view.tree or self._core.view.lookup(name) is not None

    def find(self, name: bytes, beginning: str) -> Version:
        """The version of a file whose id begins so. Errors: `UsageError` E_NO_SUCH_VERSION, E_NO_SUCH_FILE."""
        found = {change.id: change.version for change in islice(self.of_file(name), CHANGES_MAX)
                 if fits(change.version, beginning)}
        if len(found) != 1:
            raise UsageError(f"{beginning!r} fits {len(found)} versions of {_text(name)}.", code="E_NO_SUCH_VERSION",
                             next_step=f"See their ids: {_see(name)}")
        (version,) = found.values()
        if version.deleted:
            raise UsageError(f"the version {beginning} of {_text(name)} is its removal: there is no content to put "
                             "back.", code="E_NO_SUCH_VERSION", next_step="To remove it: hinet-node vault rm NAME")
        return version

    def before(self, name: bytes, time_s: int) -> Version | None:
        """The version of a file at a time; None if it was not there then. Errors: `UsageError` E_NO_SUCH_FILE;
        `IntegrityError` E_PAST_ENDS when the history does not reach so far back."""
        for change in islice(self.of_file(name), CHANGES_MAX):
            if change.time <= time_s:
                return None if change.version.deleted or change.name != name else change.version
            if change.ends:
                raise IntegrityError(f"the history of {_text(name)} does not reach back to that time: older versions "
                                     "were collected.", code="E_PAST_ENDS",
                                     next_step=f"See what is left: {_see(name)}")
        return None

    def last_content(self, name: bytes) -> Version:
        """What a removed file held last. Errors: `UsageError` for one that is there, or was never; `IntegrityError`
        E_PAST_ENDS."""
        row = self._core.view.lookup(name)
        if row is not None:
            raise UsageError(f"the vault holds {_text(name)}; which of its older versions is to come back?",
                             next_step=f"See them: {_see(name)}   Then add --version ID, or --before TIME")
        for change in islice(self.of_file(name), CHANGES_MAX):
            if not change.version.deleted:
                return change.version
            if change.ends:
                break
        raise IntegrityError(f"the content of {_text(name)} was collected: there is nothing to put back.",
                             code="E_PAST_ENDS", next_step="See what is left: hinet-node vault history")

    def last_removed(self, folder: bytes) -> tuple[list[bytes], int]:
        """The names below a folder that were removed with the last removal there, sorted, and how many others are
        removed. Files that were given another name are not removed."""
        gone = {name: versions[0] for name, versions in sorted(self._core.view.tree.items())
                if name.startswith(folder) and not name.startswith(RESERVED) and versions[0].deleted
                and moved_to(versions[0]) is None}
        if not gone:
            return [], 0
        now = self._core.publisher.now()
        last = max(gone.values(), key=lambda version: (min(version.time, now), version.dot))
        names = [name for name, version in gone.items() if version.dot == last.dot]
        return names, len(gone) - len(names)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _rows_of(self, name: bytes) -> list[PastRow]:
        versions = self._core.view.tree.get(name, ())
        row = self._core.view.lookup(name)
        if row is not None and row[1] is not None:
            return [(row[1], row[0])]
        if not versions:
            raise UsageError(f"the vault holds no file {_text(name)}, and never did as far as it knows.",
                             code="E_NO_SUCH_FILE", next_step="See what was there: hinet-node vault history")
        return [(name, version) for version in versions]

    def _changes(self, rows: Iterable[PastRow]) -> Iterator[Change]:
        self._core.refuse_keeper()
        first = list(rows)
        now_rows = set(first)
        for step in walk(first, self.read, self._core.publisher.now()):
            came_from = next((name for name, _ in step.replaced or () if name != step.name), None)
            yield Change(step.name, step.version, _what(step, came_from), step.time, came_from,
                         (step.name, step.version) in now_rows, step.ends)

    def read(self, chunk_id: bytes) -> tuple[PastRow, ...] | None:
        """The rows of a chunk of past versions; None where it is not held (any more), or is none."""
        if self._core.store.index.pack_of(chunk_id) is None:
            return None
        try:
            return decode_past(self._core.reader.read(chunk_id))
        except (IntegrityError, NotAuthorised, TreeMalformed):
            return None


def _what(step: Step, came_from: bytes | None) -> str:
    if step.version.deleted:
        return "removed"
    if came_from is not None:
        return "renamed"
    alive = {(version.size, version.digest) for _, version in step.replaced or () if not version.deleted}
    if step.replaced is None:
        return "changed"
    if not step.replaced:
        return "added"
    if not alive:
        return "restored"
    return "settled" if len(alive) > 1 else "changed"


def no_history(name: bytes) -> NodeError:
    """The error for a name that neither a file nor a folder ever had."""
    return UsageError(f"the vault holds nothing under {_text(name)}, and never did as far as it knows.",
                      code="E_NO_SUCH_FILE", next_step="See what was there: hinet-node vault history")


def _see(name: bytes) -> str:
    return f"hinet-node vault history {shlex.quote(name.decode('utf-8', 'backslashreplace'))}"


def _text(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))
