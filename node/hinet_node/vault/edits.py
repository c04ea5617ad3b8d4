"""Edits of what the vault holds: removing, putting back, renaming, settling; and the past that each of them keeps.

Every edit writes what it replaces into one small chunk beside it (SPEC.md, 6.3), so that nothing that stood under a
name is lost by changing it. Leaves taking in new content to `core`, finding what to put back to `history`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hinet_node.errors import ConflictError, IntegrityError, UsageError
from hinet_node.vault.finding import RESERVED
from hinet_node.vault.items import OnProgress
from hinet_node.vault.progress import Counter
from hinet_node.vault.writer import PackWriter
from hinet_protocol.attributes import with_past
from hinet_protocol.packs import PAST
from hinet_protocol.past import PastRow, encode_past, moved_attributes
from hinet_protocol.trees import (
    Version,
    Versions,
    contents,
    name_bytes_max,
    next_version,
    replaced_by_edit,
    split_ending,
    version_hash,
)

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore


def check_name(name: bytes) -> None:
    """Errors: `UsageError` for a name that the vault can't keep."""
    if not 1 <= len(name) <= name_bytes_max:
        raise UsageError(f"A name in the vault has 1 to {name_bytes_max} bytes, this one {len(name)}.",
                         next_step="Give it a shorter name.")


@dataclass(frozen=True, slots=True)
class Edit:
    """One name's next version. `content` gives size, digest, chunks and attributes, or is a deletion; `settled` are
    concurrent versions that it replaces beside the one shown; `moved` is what it was made from under other names."""

    name: bytes
    content: Version
    settled: Versions = ()
    moved: tuple[PastRow, ...] = ()
    from_past: bool = False
    """Whether the content may be gone from the packs: then it is looked for before anything is written."""


@dataclass(frozen=True)
class Contested:
    """A name that concurrent versions compete for. `versions` are in the order of the tree: the first is shown under
    the name; edits with their own content, then a deletion beside them, if any."""

    name: bytes
    versions: tuple[tuple[Version, bytes | None], ...]
    """Each with the name it is shown under; None for a deletion."""


class Edits:
    """Makes versions and publishes them. Blocks on the disk; used under the vault's writing lock."""

    def __init__(self, core: VaultCore) -> None:
        self._core = core

    def version(self, writer: PackWriter, edit: Edit, seq: int, *, keep_past: bool = True) -> tuple[bytes, Version]:
        """The edit as this device's version in its head `seq`; what it replaces goes into `writer`."""
        before = self._core.view.tree.get(edit.name, ())
        rows = [*((edit.name, one) for one in replaced_by_edit(before, edit.settled)), *edit.moved]
        past = None
        if rows and keep_past and not edit.name.startswith(RESERVED):
            past = writer.add(PAST, encode_past(rows))
        mine = replace(edit.content, device=self._core.household.device_public, counter=seq,
                       attributes=with_past(edit.content.attributes, past))
        return edit.name, next_version(before, mine, edit.settled)

    def publish(self, edits: Sequence[Edit], on_progress: OnProgress | None = None) -> None:
        """All of these under one head. Errors: `IntegrityError` E_VERSION_GONE when content that they put back is not
        held any more, and then nothing has changed."""
        for edit in edits:
            check_name(edit.name)
        writer = self._core.publisher.writer()
        wanted = [edit for edit in edits if edit.from_past]
        count = Counter(b"", sum(edit.content.size for edit in wanted), len(wanted), on_progress)
        try:
            for edit in wanted:
                self._keep(writer, edit.content, count.bytes)
                count.file()
        except BaseException:
            writer.take_back()
            raise
        self._core.publisher.publish(writer, lambda seq: [self.version(writer, edit, seq) for edit in edits])

    def _keep(self, writer: PackWriter, version: Version, on_bytes: Callable[[int], None]) -> None:
        """Have the head name packs that hold the content, each chunk opened once: what is promised to be back is."""
        left = version.size
        for chunk_id in self.chunk_ids(version):
            pack = self._core.reader.pack_holding(chunk_id)
            if pack is None:
                raise _gone()
            writer.packs.add(pack)
            on_bytes(min(left, self._core.settings.chunk_bytes))
            left = max(0, left - self._core.settings.chunk_bytes)

    def chunk_ids(self, version: Version) -> Iterator[bytes]:
        """All chunks of a version's content, lists of chunks included. Errors: `IntegrityError`."""
        for chunk_id in version.chunk_ids():
            yield chunk_id
            if version.indirect:
                ids = self._core.reader.read(chunk_id)
                yield from (ids[at:at + 32] for at in range(0, len(ids), 32))

    def held(self, version: Version) -> bool:
        """Whether the content seems to be here, by the index."""
        try:
            wanted = set(self.chunk_ids(version))
        except IntegrityError:
            return False
        return len(self._core.store.index.held(wanted)) == len(wanted)

    # ---- removing and renaming -----------------------------------------------------------------------------------

    def remove(self, names: Iterable[bytes]) -> int:
        """Tombstones for files; for a concurrent edit, a version that settles it. How many were there."""
        rows = {name: row for name in sorted(names) if (row := self._core.view.lookup(name)) is not None}
        if rows:
            self.publish(self._removals(rows))
        return len(rows)

    def _removals(self, rows: Mapping[bytes, tuple[Version, bytes | None]]) -> list[Edit]:
        now, made = self._core.publisher.now(), []
        for name in sorted({conflict_of or name for name, (_, conflict_of) in rows.items()}):
            settled = tuple(version for version, conflict_of in rows.values() if conflict_of == name)
            stays = _gone_now(now) if name in rows else replace(self._core.view.tree[name][0], time=now)
            made.append(Edit(name, stays, settled))
        return made

    def move(self, names: Mapping[bytes, bytes]) -> int:
        """Give files other names (old -> new): their past goes with them. Errors: `UsageError` E_NO_SUCH_FILE,
        `ConflictError` E_NAME_TAKEN."""
        shown = self._core.shown()
        rows = {old: self._core.version(old) for old in sorted(names)}
        now, made = self._core.publisher.now(), []
        taken = set(names.values())
        if len(taken) < len(names):
            raise _taken(min(taken))
        folders = {b"/".join(parts[:end]) for name in shown.keys() - rows.keys()
                   for parts in (name.split(b"/"),) for end in range(1, len(parts))}
        for old, new in sorted(names.items()):
            if (new in shown and new not in rows) or new in folders:
                raise _taken(new, folder=new in folders)
            for parent in itertools.accumulate(new.split(b"/")[:-1], lambda path, part: path + b"/" + part):
                if parent in shown and parent not in rows:
                    raise _taken(parent)
            version, conflict_of = rows[old]
            made.append(Edit(new, replace(version, time=now), moved=((conflict_of or old, version),)))
        removals = [replace(edit, content=replace(edit.content, attributes=moved_attributes(names[edit.name])))
                    if edit.content.deleted else edit for edit in self._removals(rows) if edit.name not in taken]
        self.publish(made + removals)
        return len(rows)

    # ---- putting back --------------------------------------------------------------------------------------------

    def put_back(self, rows: Mapping[bytes, Version], on_progress: OnProgress | None = None) -> list[bytes]:
        """Make past versions the newest ones of these names; the names that this changed."""
        now, edits = self._core.publisher.now(), []
        for name, version in sorted(rows.items()):
            before = self._core.view.tree.get(name, ())
            if before and before[0].same_content(version):
                continue
            edits.append(Edit(name, replace(version, time=now), from_past=True))
        if edits:
            self.publish(edits, on_progress)
        return [edit.name for edit in edits]

    # ---- settling ------------------------------------------------------------------------------------------------

    def contested(self) -> list[Contested]:
        """The names that several versions compete for, sorted."""
        tree = self._core.view.tree
        beside: dict[bytes, dict[Version, bytes]] = {}
        for shown_as, (version, conflict_of) in self._core.shown().items():
            if conflict_of is not None:
                beside.setdefault(conflict_of, {})[version] = shown_as
        found = []
        for name in self._core.view.contested():
            versions = tree[name]
            rows = [(version, name if at == 0 else beside.get(name, {}).get(version))
                    for at, version in enumerate(contents(versions))]
            rows += [(version, None) for version in versions if version.deleted][:1] if rows else []
            if len(rows) > 1:
                found.append(Contested(name, tuple(rows)))
        return found

    def settle(self, name: bytes, keep: str) -> list[bytes]:
        """End the competition for a name. `keep` is the beginning of a version's hash, the name that it is shown
        under, `mine`, `newest-shown` or `both`; the names that stand for it then.

        Errors: `UsageError` E_NO_CONFLICT, E_NO_SUCH_VERSION.
        """
        row = self._core.view.lookup(name)
        name = row[1] if row is not None and row[1] is not None else name
        one = next((one for one in self.contested() if one.name == name), None)
        if one is None:
            raise UsageError(f"nothing competes for the name {_text(name)}: there is nothing to settle.",
                             code="E_NO_CONFLICT", next_step="See what is contested: hinet-node vault conflicts")
        now, edits, versions = self._core.publisher.now(), list[Edit](), self._core.view.tree[name]
        if keep == "both":
            taken = set(self._core.shown())
            for version, _ in one.versions[1:]:
                if not version.deleted:
                    new = self._own_name(name, version, taken)
                    taken.add(new)
                    edits.append(Edit(new, replace(version, time=now), moved=((name, version),)))
            chosen = versions[0]
        else:
            chosen = self._chosen(one, keep)
        edits.insert(0, Edit(name, replace(chosen, time=now), versions[1:]))
        self.publish(edits)
        return [edit.name for edit in edits if not edit.content.deleted]

    def _chosen(self, one: Contested, keep: str) -> Version:
        if keep == "newest-shown":
            return one.versions[0][0]
        me = self._core.household.device_public
        if keep == "mine":
            found = [version for version, _ in one.versions if version.device == me]
        else:
            found = [version for version, shown_as in one.versions if fits(version, keep)
                     or (shown_as is not None and shown_as == keep.encode("utf-8", "surrogateescape"))]
        if len(found) != 1:
            what = (f"this device wrote {len(found)} of the versions" if keep == "mine" else
                    f"{keep!r} fits {len(found)} of the versions")
            raise UsageError(f"{what} of {_text(one.name)}; exactly one is needed.", code="E_NO_SUCH_VERSION",
                             next_step="See their ids: hinet-node vault conflicts")
        return found[0]

    def _own_name(self, name: bytes, version: Version, taken: Collection[bytes]) -> bytes:
        device = self._core.household.names().get(version.device, version.device.hex()[:8])
        stem, ending = split_ending(name)
        plain = "".join(letter if letter.isalnum() or letter in "-_ ." else "-" for letter in device)
        mark, number = b".from-" + plain.encode(), 1
        while True:
            last = mark + (b"-%d" % number if number > 1 else b"") + ending
            new = stem[:max(0, name_bytes_max - len(last))] + last
            if new not in taken:
                return new
            number += 1


def fits(version: Version, beginning: str) -> bool:
    """Whether a version's hash begins so; four digits at least, so that a word is seldom taken for one."""
    return len(beginning) >= 4 and version_hash(version).hex().startswith(beginning.lower())


def _gone_now(now: int) -> Version:
    return Version(b"", 0, (), (), now, deleted=True)


def _gone() -> IntegrityError:
    return IntegrityError("The content of that version is not held here any more: it was collected, or its packs are "
                          "missing. Nothing was changed.", code="E_VERSION_GONE",
                          next_step="See which versions can be put back: hinet-node vault history NAME")


def _taken(name: bytes, *, folder: bool = False) -> ConflictError:
    if folder:
        return ConflictError(f"the vault holds a folder {_text(name)}. Nothing was renamed.", code="E_NAME_TAKEN",
                             next_step="To put it into that folder, write the folder's name with / at the end.")
    return ConflictError(f"the vault holds a file {_text(name)} already. Nothing was renamed.", code="E_NAME_TAKEN",
                         next_step="Choose another name, or remove that file first: hinet-node vault rm NAME")


def _text(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))
