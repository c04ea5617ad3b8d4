"""One put: sources read beside, chunks stored, and which names get a new version. SPEC.md, 6.1 and 6.3.

A lane of the disk reads and hashes ahead while this thread seals; `writer` has another one that writes. So memory stays
the same whatever the size of a file. Leaves finding files to `finding`, reading to `sources`, publishing to `core`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hinet_node.errors import IntegrityError
from hinet_node.ports import Pending
from hinet_node.vault.finding import File, Finder, Folder, Notes, Placed, reason
from hinet_node.vault.items import AddReport, OnProgress
from hinet_node.vault.looks import is_settled
from hinet_node.vault.progress import Counter
from hinet_node.vault.sources import End, Part, Source, SourceReader, room_bytes, unreadable
from hinet_node.vault.writer import ContentIds, PackWriter
from hinet_protocol.attributes import make_attributes, mode_executable, mode_plain, no_attributes, read_attributes
from hinet_protocol.packs import DATA
from hinet_protocol.trees import Version

if TYPE_CHECKING:
    from hinet_node.vault.core import VaultCore

_AHEAD = 3
"""Batches of parts, of up to 5 MiB each, that are read ahead."""
_LOOKS_AT_ONCE = 1_024


OnRead = Callable[[int, End], None]
"""Told of the number of each source that was read to its end."""


class Intake:
    """Stores the content of sources through one writer, and keeps the versions that are new."""

    def __init__(self, core: VaultCore, writer: PackWriter, count: Counter) -> None:
        self._core = core
        self._writer = writer
        self._count = count
        self._device, self._now = core.household.device_public, core.publisher.now()
        self.versions: dict[bytes, Version] = {}

    def store(self, names: Callable[[int], bytes], sources: Iterable[Source], on_end: OnRead) -> None:
        """Store the content of each source under the name that `names` gives for its number. Those that can't be read
        are left to `on_end`."""
        ids, sealed_before = ContentIds(self._writer), self._writer.sealed_chunks
        for batch in self._batches(sources):
            self._writer.ask({part.chunk for part in batch if part.data is not None})
            for part in batch:
                if part.again:
                    ids = ContentIds(self._writer)
                if part.data is not None:
                    ids.add(self._writer.add(DATA, part.data, part.chunk))
                    self._count.bytes(len(part.data))
                if part.end is not None:
                    if part.end.error is None:
                        self._take(names(part.number), part.end, ids, sealed_before)
                    on_end(part.number, part.end)
                    self._count.file()
                    ids, sealed_before = ContentIds(self._writer), self._writer.sealed_chunks
        self._writer.ask(set())
        self._count.tell()

    def _batches(self, sources: Iterable[Source]) -> Iterator[list[Part]]:
        lane = self._core.disk.lane()
        reader = SourceReader(sources, self._writer.id_key, self._core.settings.chunk_bytes)
        ahead: deque[Pending[list[Part]]] = deque()
        try:
            while True:
                while len(ahead) < _AHEAD:
                    ahead.append(lane.do(reader.batch))
                batch = ahead.popleft().result()
                if not batch:
                    return
                yield batch
        finally:
            lane.close()
            reader.close()

    def _take(self, name: bytes, end: End, ids: ContentIds, sealed_before: int) -> None:
        """A source was read: keep its version if it says anything new. The same content does when some chunk of it had
        to be sealed, for then the copy that the vault's version names is lost."""
        found = end.found
        attributes = no_attributes if found is None else make_attributes(found.st_mode, found.st_mtime_ns)
        indirect, chunks = ids.finish()
        version = Version(self._device, 0, (), (), self._now, 1, False, end.size, end.digest, indirect, chunks,
                          attributes)
        row = self._core.view.lookup(name)
        if (row is None or row[1] is not None or self._writer.sealed_chunks > sealed_before
                or not row[0].same_content(version) or not (found is None or has_mode(row[0], found))
                or not is_held(self._core, row[0])):
            self.versions[name] = version


def has_mode(version: Version, found: os.stat_result) -> bool:
    """Whether a version says of a file what its mode says: that it may be run, or not."""
    mode = mode_executable if found.st_mode & 0o100 else mode_plain
    return (read_attributes(version.attributes).mode or mode_plain) == mode


def is_held(core: VaultCore, version: Version) -> bool:
    """Whether every chunk of the content is in some pack, by the index, those that lists of a long file name too."""
    try:
        wanted = set(core.edits.chunk_ids(version))
    except IntegrityError:
        return False
    return len(core.store.index.held(wanted)) == len(wanted)


def put(core: VaultCore, sources: Sequence[tuple[bytes, Source]], total_bytes: int,
        on_progress: OnProgress | None, *, keep_past: bool) -> None:
    """Store sources that must all be readable, under one head. Errors: `UsageError`, `NoSpace`, `NotAuthorised`."""
    writer = core.publisher.writer()
    core.check_room(total_bytes)
    intake = Intake(core, writer, Counter(b"", total_bytes, len(sources), on_progress))

    def ended(number: int, end: End) -> None:
        if end.error is not None:
            source = sources[number][1]
            raise unreadable(source if isinstance(source, (str, Path)) else "", end.error) from end.error

    try:
        intake.store(lambda number: sources[number][0], (source for _, source in sources), ended)
    except BaseException:
        writer.take_back()
        raise
    core.publish(writer, intake.versions, keep_past=keep_past)


# --- folders ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    """What there is to read: folders and the files in each, which takes little memory for very many files."""

    files: list[tuple[Folder, list[Placed]]] = field(default_factory=list)
    bytes_to_read: int = 0
    room_bytes: int = 0
    to_read: int = 0
    unchanged: int = 0
    unchanged_bytes: int = 0

    def sources(self) -> Iterator[Placed]:
        for _, placed in self.files:
            yield from placed


def add_files(core: VaultCore, roots: Sequence[Path], under: bytes, *, rescan: bool,
              on_progress: OnProgress | None) -> AddReport:
    """Store the files below these roots under one head, those that can be read; what could not is in the report. A file
    that looks as it did when it was last read is not read again, unless `rescan`.

    Errors: `UsageError` for a root that is missing or can't be read; `NoSpace`; `NotAuthorised`.
    """
    writer = core.publisher.writer()
    notes = Notes()
    plan = _Plan()
    for batch in Finder(roots, under, notes).files():
        _sort(core, batch, plan, rescan)
    core.check_room(plan.room_bytes)
    count = Counter(b"", plan.bytes_to_read, plan.to_read, on_progress)
    intake = Intake(core, writer, count)
    taken = _Taken(core, plan, notes)
    try:
        count.tell()
        intake.store(taken.name, plan.sources(), taken.ended)
        taken.remember()
    except BaseException:
        writer.take_back()
        raise
    core.publish(writer, intake.versions)
    return AddReport(taken.files + plan.unchanged, taken.bytes + plan.unchanged_bytes, plan.unchanged,
                     len(intake.versions), notes)


def _sort(core: VaultCore, batch: list[File], plan: _Plan, rescan: bool) -> None:
    """Tell the files that must be read from those that look as they did."""
    looks = core.looks
    keys = [] if rescan else [looks.key(placed.path()) for placed, _ in batch]
    marks = looks.remembered(keys) if keys else {}
    same: list[tuple[File, Version]] = []
    to_read: list[File] = []
    for at, one in enumerate(batch):
        version = None
        if marks and (mark := marks.get(keys[at])) is not None:
            version = _same(core, one, mark)
        if version is None:
            to_read.append(one)
        else:
            same.append((one, version))
    held = core.store.index.held({chunk for _, version in same for chunk in version.chunk_ids()}) if same else set()
    for one, version in same:
        if all(chunk in held for chunk in version.chunk_ids()) and (not version.indirect or is_held(core, version)):
            plan.unchanged += 1
            plan.unchanged_bytes += version.size
        else:
            to_read.append(one)
    if to_read:
        plan.files.append((batch[0][0].folder, [placed for placed, _ in to_read]))
        plan.to_read += len(to_read)
        plan.bytes_to_read += sum(found.st_size for _, found in to_read)
        plan.room_bytes += sum(room_bytes(found) for _, found in to_read)


def _same(core: VaultCore, one: File, mark: bytes) -> Version | None:
    """The vault's version of a file, if it is what was read when the file looked as it does now."""
    placed, found = one
    row = core.view.lookup(placed.name)
    if row is None or row[1] is not None or row[0].deleted or row[0].size != found.st_size:
        return None
    return row[0] if core.looks.mark(found, row[0].digest) == mark and has_mode(row[0], found) else None


class _Taken:
    """Follows the files of a plan as they are read: counts them, notes what was wrong, remembers how they looked."""

    def __init__(self, core: VaultCore, plan: _Plan, notes: Notes) -> None:
        self._core = core
        self._notes = notes
        self._order = plan.sources()
        self._at = -1
        self._now: Placed
        self._looks: list[tuple[bytes, bytes]] = []
        self.files = self.bytes = 0

    def name(self, number: int) -> bytes:
        return self._placed(number).name

    def _placed(self, number: int) -> Placed:
        while self._at < number:
            self._now = next(self._order)
            self._at += 1
        return self._now

    def ended(self, number: int, end: End) -> None:
        placed = self._placed(number)
        if end.error is not None:
            self._notes.leave_out(placed.path(), reason(end.error))
            return
        self.files += 1
        self.bytes += end.size
        if end.changed:
            self._notes.change(placed.path())
        elif end.found is not None and is_settled(end.found, end.looked_ns):
            looks = self._core.looks
            self._looks.append((looks.key(placed.path()), looks.mark(end.found, end.digest)))
            if len(self._looks) >= _LOOKS_AT_ONCE:
                self.remember()

    def remember(self) -> None:
        if self._looks:
            self._core.looks.remember(self._looks)
            self._looks.clear()
