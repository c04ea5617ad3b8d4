"""Heads on disk: each device's newest ones, forks, and the number that this device may use next. SPEC.md, 6.4.

    vault/heads/<device key>/<number, 20 digits>-<hash>     one signed head, as received

A number is on disk (`seqfile`) before a head carries it. A head file that does not verify is set aside as `….damaged`;
the one before it stands in until a sibling sends it again. While this device's own newest head is known to be lost, it
writes none (`lost`): a new one would hide what the lost one brought, or use its number again. Leaves deciding which
heads to take to `replicate`, trees to `view`, looking for damage to `headcheck`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from hinet_node.errors import IntegrityError, NoSpace
from hinet_node.ports import Disk
from hinet_node.vault.packfolder import ASIDE, entries
from hinet_node.vault.seqfile import has_written, note_written, read_seq, write_seq
from hinet_protocol.errors import ProtocolError
from hinet_protocol.heads import Head, Standing, contradictions, judge, read_head, settled_by, skips

_HEAD_FILE = re.compile(r"(\d{20})-([0-9a-f]{64})")
_DEVICE_FOLDER = re.compile(r"[0-9a-f]{64}")
_ASIDE_FILE = re.compile(r"(\d{20})-([0-9a-f]{64})\.damaged")
HEADS = "vault/heads"
_CLAIM_AHEAD_MAX = 2**32
_CONTRADICTING_MAX = 64
"""Heads of one device that are kept beside its newest: a clone makes a few, a faulty member could make any number."""
_LOOK_BACK = 16
"""So many of its newest heads are looked through at the start for those that a device could not read itself."""
_LEAP = 2**16
"""How many numbers are left out where it is not known any more which ones were used."""


def head_path(device: bytes, seq: int, head_hash: bytes) -> str:
    return f"{HEADS}/{device.hex()}/{seq:020d}-{head_hash.hex()}"


class HeadStore:
    """The heads of one home. `current` has, for each device, its newest head, all heads of a forked number, and of this
    device those that a later one went on without, because it could not read them or another machine made it."""

    def __init__(self, disk: Disk, identity_id: bytes, device_public: bytes, heads_kept: int) -> None:
        self._disk = disk
        self._identity_id = identity_id
        self._device = device_public
        self._heads_kept = heads_kept
        self._known: dict[bytes, dict[int, set[bytes]]] = {}
        self._current: dict[bytes, dict[bytes, Head]] = {}
        self._skipped: set[bytes] = set()
        self._settled: frozenset[bytes] = frozenset()
        self._previous: dict[bytes, tuple[bytes, Head | None]] = {}
        """Device -> the hash of its newest head and the head before, once it was asked for."""
        self.closed: dict[str, str] = {}
        """Folders of heads that can't be read -> why."""
        self._lost_numbers: set[int] = set()
        self._in_doubt: list[str] = []
        """Paths of heads that may or may not be on the disk: writing them failed, and so did taking them back."""
        for folder in entries(disk, HEADS, self.closed):
            if _DEVICE_FOLDER.fullmatch(folder):
                self._load(bytes.fromhex(folder))
        self._look_back()
        self._settled = settled_by(head for heads in self._current.values() for head in heads.values())
        # Never below what others have seen of this device: a restored old copy must not use a number again.
        seen = [dict(head.vector).get(device_public, 0) for head in self.current()]
        noted, own = read_seq(disk), self._known.get(device_public, {})
        self._wrote = has_written(disk, device_public)
        self._kept = max([noted.kept, int(self._wrote), *self._lost_numbers])
        self._reserved = max([noted.number, *own, *seen, *self._lost_numbers])
        self.seq_fault = noted.fault or ("it is gone" if noted.missing and (own or self._wrote) else "")
        """Why `vault/seq` does not say any more which numbers were used; empty when it does."""
        if own and not self._wrote:
            self._note_written()

    # ---- what is known -------------------------------------------------------------------------------------------

    def current(self) -> list[Head]:
        """All heads that make up the view, sorted by device and number."""
        return sorted((head for heads in tuple(self._current.values()) for head in tuple(heads.values())),
                      key=lambda head: (head.device, head.seq, head.hash))

    def newest(self) -> dict[bytes, Head]:
        """Device -> its newest head; of a forked number the lowest hash."""
        return {device: max(heads.values(), key=lambda head: (head.seq, [-byte for byte in head.hash]))
                for device, heads in tuple(self._current.items()) if heads}

    def own(self) -> Head | None:
        return self.newest().get(self._device)

    @property
    def reserved(self) -> int:
        """The highest number that was ever taken for this device."""
        return self._reserved

    @property
    def settled(self) -> frozenset[bytes]:
        """Hashes of the heads that a kept head settles. They are taken up while they can be read, and nothing else."""
        return self._settled

    def needed(self) -> list[Head]:
        """The heads whose packs this device wants to hold: the current ones that nobody settled."""
        return [head for head in self.current() if head.hash not in self._settled]

    def skipped(self) -> list[Head]:
        """This device's own heads that a later one went on without, and that are current for no other reason."""
        known = self._known.get(self._device, {})
        return [head for head in self._current.get(self._device, {}).values()
                if head.hash in self._skipped and len(known[head.seq]) == 1 and head.seq < max(known)]

    def forks(self) -> list[tuple[Head, ...]]:
        """Groups of heads of one device with the same number: proof of a clone or of a restored old copy."""
        return contradictions(self.needed())

    def older(self, device: bytes) -> Iterator[Head]:
        """The device's heads before its newest, newest first, read from disk."""
        for seq in sorted(self._known.get(device, {}), reverse=True)[1:]:
            for head_hash in sorted(self._known[device][seq]):
                head = self._read(device, seq, head_hash)
                if head is not None:
                    yield head

    def previous(self, device: bytes) -> Head | None:
        """The device's kept head before its newest one; None when there is none that can be read."""
        newest = self.newest().get(device)
        if newest is None:
            return None
        known = self._previous.get(device)
        if known is None or known[0] != newest.hash:
            known = self._previous[device] = (newest.hash, next(iter(self.older(device)), None))
        return known[1]

    def judge(self, head: Head) -> Standing:
        return judge(head, self._known.get(head.device, {}))

    def fresh(self, heads: Iterable[Head]) -> list[Head]:
        """Those of verified heads that would change something. Two of one number that come together prove a fork of
        long ago as well: whoever missed it must end up with the same heads as those who saw it."""
        together: dict[tuple[bytes, int], set[bytes]] = {}
        offered = list(heads)
        for head in offered:
            together.setdefault((head.device, head.seq), set()).add(head.hash)
        found = []
        for head in offered:
            kind = self.judge(head).kind
            forked = kind == "fork" or (kind == "older" and len(together[head.device, head.seq]) > 1)
            if kind == "new" or (forked and not self._crowded(head.device)):
                found.append(head)
        return found

    def believable(self, heads: Sequence[Head], members: Collection[bytes]) -> list[Head]:
        """Those of verified heads that claim no absurd number of another member: a device whose last possible number
        is said to be used could write nothing any more. A real claim is ahead by the heads that are on their way."""
        newest = {device: max(known) for device, known in self._known.items() if known}
        for head in heads:
            newest[head.device] = max(head.seq, newest.get(head.device, 0))
        newest[self._device] = max(self._reserved, newest.get(self._device, 0))
        return [head for head in heads if all(
            number <= newest.get(device, 0) + _CLAIM_AHEAD_MAX or device == head.device or device not in members
            for device, number in head.vector)]

    def records(self) -> list[tuple[bytes, int, bytes]]:
        """(device, number, hash) of every record that is on disk as far as is known, sorted."""
        return sorted((device, seq, head_hash) for device, known in tuple(self._known.items())
                      for seq, hashes in tuple(known.items()) for head_hash in tuple(hashes))

    def knows(self, device: bytes, seq: int, head_hash: bytes) -> bool:
        return head_hash in self._known.get(device, {}).get(seq, ())

    def misses(self, device: bytes, seq: int, head_hash: bytes) -> bool:
        """Whether a head that was set aside would still count: it is not held, and its device's newest is no newer."""
        return (not self.knows(device, seq, head_hash)
                and seq >= max(self._known.get(device, {}), default=0))

    def seq_changed(self) -> str:
        """Why the number file is not as this device wrote it last; empty when it is."""
        noted = read_seq(self._disk)
        return noted.fault or ("it is gone" if noted.missing and (self._wrote or self._own_newest()) else "")

    # ---- changing ------------------------------------------------------------------------------------------------

    def reserve(self) -> int:
        """The next number of this device, on disk before it is returned. Raises NoSpace."""
        leap = _LEAP if self.seq_fault or self.lost() else 1
        number = self._reserved + leap
        write_seq(self._disk, number, self._own_newest())
        self._reserved = number
        self.seq_fault = ""
        return number

    def lost(self) -> bool:
        """Whether this device is known to have made a newer head than the newest of its own that it holds."""
        return self._own_newest() < self._kept

    def _own_newest(self) -> int:
        return max(self._known.get(self._device, {}), default=0)

    def _note_written(self) -> None:
        note_written(self._disk, self._device)
        self._wrote = True

    def keep(self, heads: Iterable[Head]) -> list[Head]:
        """Make verified heads durable; those that are `fresh`."""
        kept = []
        for head in self.fresh(heads):
            self._write(head)
            self._enter(head)
            if head.device == self._device and not self._wrote:
                self._note_written()
            self._reserved = max(self._reserved, dict(head.vector).get(self._device, 0))
            self._trim(head.device)
            kept.append(head)
        return kept

    def rewrite_seq(self) -> None:
        """Write the number file again. What it said is lost, so numbers are left out. Errors: `NoSpace`, `OSError`."""
        number = self._reserved + (_LEAP if self.seq_fault or self.lost() else 0)
        write_seq(self._disk, number, self._own_newest())
        self._reserved, self.seq_fault = number, ""

    def lose(self, device: bytes, seq: int, head_hash: bytes) -> None:
        """A record turned out to be damaged or gone, and nothing of it is in memory."""
        self.set_aside(device, seq, head_hash)
        known = self._known.get(device, {})
        known.get(seq, set()).discard(head_hash)
        if not known.get(seq):
            known.pop(seq, None)

    def write(self, head: Head) -> None:
        """Put the record of a head on disk, and take away what was set aside of it."""
        path = head_path(head.device, head.seq, head.hash)
        self._disk.write_atomic(path, head.raw)
        if self._disk.exists(path + ASIDE):
            self._disk.remove(path + ASIDE)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _write(self, head: Head) -> None:
        path = head_path(head.device, head.seq, head.hash)
        self._end_doubt()
        try:
            self.write(head)
        except BaseException:
            # It may be there all the same: then the next start would find a head that was never acknowledged.
            self._in_doubt.append(path)
            with suppress(NoSpace, OSError):
                self._end_doubt()
            raise

    def _end_doubt(self) -> None:
        while self._in_doubt:
            self._disk.remove(self._in_doubt[-1])
            self._in_doubt.pop()

    def _enter(self, head: Head) -> None:
        known = self._known.setdefault(head.device, {})
        known.setdefault(head.seq, set()).add(head.hash)
        current = self._current.setdefault(head.device, {})
        for other in sorted(known[head.seq] - current.keys() - {head.hash}):  # a fork of an older number: both count
            found = self._read(head.device, head.seq, other)
            if found is not None:
                current[other] = found
        current[head.hash] = head
        newest, prev_seq = max(known), self._seq_of(head.device, head.prev)
        if head.device == self._device:
            # An own head that came from a sibling and whose past is not known here may know nothing of this home's.
            self._skipped.update(one.hash for one in current.values() if skips(head, one, prev_seq) or (
                prev_seq is None and one.hash != head.prev and one.seq < head.seq))
        self._current[head.device] = {
            key: one for key, one in current.items()
            if one.seq == newest or len(known.get(one.seq, ())) > 1 or key in self._skipped}
        self._settled = settled_by(head for heads in self._current.values() for head in heads.values())

    def _crowded(self, device: bytes) -> bool:
        return sum(head.hash not in self._settled for head in self._current[device].values()) > _CONTRADICTING_MAX

    def _seq_of(self, device: bytes, head_hash: bytes) -> int | None:
        return next((seq for seq, hashes in self._known.get(device, {}).items() if head_hash in hashes), None)

    def _look_back(self) -> None:
        """Find own heads that later own ones went on without: what they brought is missing until they are taken up."""
        own = self._current.get(self._device, {})
        linked = {head.prev for head in own.values()}
        # A record that was trimmed, and that a power cut brought back, follows on nothing that is kept: it is no such.
        for seq in sorted(self._known.get(self._device, {}), reverse=True)[1:min(_LOOK_BACK, self._heads_kept)]:
            for name in sorted(self._known[self._device][seq]):
                head = own.get(name) or self._read(self._device, seq, name)
                if head is not None:
                    if name not in linked and name not in own:
                        self._skipped.add(name)
                        own[name] = head
                    linked.add(head.prev)

    def _load(self, device: bytes) -> None:
        known: dict[int, set[bytes]] = {}
        for entry in entries(self._disk, f"{HEADS}/{device.hex()}", self.closed):
            match = _HEAD_FILE.fullmatch(entry)
            if match:
                known.setdefault(int(match[1]), set()).add(bytes.fromhex(match[2]))
            lost = _ASIDE_FILE.fullmatch(entry)
            if lost and device == self._device:
                self._lost_numbers.add(int(lost[1]))
        self._known[device] = known
        self._current[device] = {}
        for seq in sorted(known, reverse=True):
            has_newest = bool(self._current[device])
            if has_newest and len(known[seq]) == 1:
                continue
            for head_hash in sorted(known[seq]):
                head = self._read(device, seq, head_hash)
                if head is None:
                    known[seq].discard(head_hash)
                else:
                    self._current[device][head_hash] = head
            if not known[seq]:
                del known[seq]

    def _read(self, device: bytes, seq: int, head_hash: bytes) -> Head | None:
        head = self.record(device, seq, head_hash)
        if head is None:
            self.set_aside(device, seq, head_hash)
        return head

    def record(self, device: bytes, seq: int, head_hash: bytes) -> Head | None:
        """A head as it is on disk; None when it is not what its name says."""
        try:
            head = read_head(self._disk.read(head_path(device, seq, head_hash)), identity=self._identity_id,
                             members=(device,))
        except (ProtocolError, OSError, IntegrityError):
            return None
        return head if (head.seq, head.hash) == (seq, head_hash) else None

    def set_aside(self, device: bytes, seq: int, head_hash: bytes) -> None:
        """Keep what is left of a damaged record under another name; the head counts no more, unless it is in memory."""
        if device == self._device:
            self._lost_numbers.add(seq)
        path = head_path(device, seq, head_hash)
        try:
            self._disk.move(path, path + ASIDE)
        except (NoSpace, OSError, IntegrityError):
            pass  # it stays under its name and is not used

    def _trim(self, device: bytes) -> None:
        """Remove the oldest head records beyond `heads_kept`; heads of forks and skipped ones stay. Their packs are
        not touched."""
        known = self._known[device]
        for seq in sorted(known)[:max(0, len(known) - self._heads_kept)]:
            if len(known[seq]) == 1 and not known[seq] & self._skipped:
                (head_hash,) = known.pop(seq)  # first, so that nobody who checks the records misses it
                try:
                    self._disk.remove(head_path(device, seq, head_hash))
                except (NoSpace, OSError, IntegrityError):
                    known[seq] = {head_hash}
                    return  # the new head is kept all the same, and the next one tries again
