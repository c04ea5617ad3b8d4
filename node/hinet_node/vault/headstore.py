"""Heads on disk: each device's newest ones, forks, and the number that this device may use next. SPEC.md, 6.4.

    vault/heads/<device key>/<number, 20 digits>-<hash>     one signed head, as received
    vault/seq                                               the highest number that this device has reserved

A number is written to `vault/seq` before a head carries it. A head file that does not verify is set aside as
`….damaged`; the one before it stands in until a sibling sends it again. Leaves deciding which heads to take to
`replicate`, trees to `view`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from hinet_node.errors import NoSpace
from hinet_node.ports import Disk
from hinet_protocol.errors import ProtocolError
from hinet_protocol.heads import Head, Standing, contradictions, judge, read_head, settled_by, skips

_HEAD_FILE = re.compile(r"(\d{20})-([0-9a-f]{64})")
_DEVICE_FOLDER = re.compile(r"[0-9a-f]{64}")
_SEQ_FILE = "vault/seq"
_CLAIM_AHEAD_MAX = 2**32
_CONTRADICTING_MAX = 64
"""Heads of one device that are kept beside its newest: a clone makes a few, a faulty member could make any number."""
_LOOK_BACK = 16
"""So many of its newest heads are looked through at the start for those that a device could not read itself."""


def head_path(device: bytes, seq: int, head_hash: bytes) -> str:
    return f"vault/heads/{device.hex()}/{seq:020d}-{head_hash.hex()}"


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
        self.set_aside: list[str] = []
        for folder in disk.list("vault/heads"):
            if _DEVICE_FOLDER.fullmatch(folder):
                self._load(bytes.fromhex(folder))
        self._look_back()
        self._settled = settled_by(self.current())
        # Never below what others have seen of this device: a restored old copy must not use a number again.
        seen = [dict(head.vector).get(device_public, 0) for head in self.current()]
        self._reserved = max([self._read_seq(), *self._known.get(device_public, {}), *seen])

    # ---- what is known -------------------------------------------------------------------------------------------

    def current(self) -> list[Head]:
        """All heads that make up the view, sorted by device and number."""
        return sorted((head for heads in self._current.values() for head in heads.values()),
                      key=lambda head: (head.device, head.seq, head.hash))

    def newest(self) -> dict[bytes, Head]:
        """Device -> its newest head; of a forked number the lowest hash."""
        return {device: max(heads.values(), key=lambda head: (head.seq, [-byte for byte in head.hash]))
                for device, heads in self._current.items() if heads}

    def own(self) -> Head | None:
        return self.newest().get(self._device)

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

    def judge(self, head: Head) -> Standing:
        return judge(head, self._known.get(head.device, {}))

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

    # ---- changing ------------------------------------------------------------------------------------------------

    def reserve(self) -> int:
        """The next number of this device, on disk before it is returned. Raises NoSpace."""
        number = self._reserved + 1
        self._disk.write_atomic(_SEQ_FILE, b"%d\n" % number)
        self._reserved = number
        return number

    def keep(self, heads: Iterable[Head]) -> list[Head]:
        """Make verified heads durable; those that changed something. An older head that proves no fork is not kept."""
        kept = []
        for head in heads:
            kind = self.judge(head).kind
            if kind not in ("new", "fork") or (kind == "fork" and self._crowded(head.device)):
                continue
            self._disk.write_atomic(head_path(head.device, head.seq, head.hash), head.raw)
            self._enter(head)
            self._reserved = max(self._reserved, dict(head.vector).get(self._device, 0))
            self._trim(head.device)
            kept.append(head)
        return kept

    # ---- inside --------------------------------------------------------------------------------------------------

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
        self._settled = settled_by(self.current())

    def _crowded(self, device: bytes) -> bool:
        return sum(head.hash not in self._settled for head in self._current[device].values()) > _CONTRADICTING_MAX

    def _seq_of(self, device: bytes, head_hash: bytes) -> int | None:
        return next((seq for seq, hashes in self._known.get(device, {}).items() if head_hash in hashes), None)

    def _look_back(self) -> None:
        """Find own heads that later own ones went on without: what they brought is missing until they are taken up."""
        own = self._current.get(self._device, {})
        linked = {head.prev for head in own.values()}
        for seq in sorted(self._known.get(self._device, {}), reverse=True)[1:_LOOK_BACK]:
            for name in sorted(self._known[self._device][seq]):
                head = own.get(name) or self._read(self._device, seq, name)
                if head is not None:
                    if name not in linked and name not in own:
                        self._skipped.add(name)
                        own[name] = head
                    linked.add(head.prev)

    def _load(self, device: bytes) -> None:
        folder = f"vault/heads/{device.hex()}"
        known: dict[int, set[bytes]] = {}
        for entry in self._disk.list(folder):
            match = _HEAD_FILE.fullmatch(entry)
            if match:
                known.setdefault(int(match[1]), set()).add(bytes.fromhex(match[2]))
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
        path = head_path(device, seq, head_hash)
        try:
            head = read_head(self._disk.read(path), identity=self._identity_id, members=(device,))
        except (ProtocolError, OSError):
            head = None
        if head is not None and (head.seq, head.hash) == (seq, head_hash):
            return head
        self.set_aside.append(path)
        try:
            self._disk.move(path, path + ".damaged")
        except (NoSpace, OSError):
            pass  # it stays under its name and is not used
        return None

    def _read_seq(self) -> int:
        try:
            text = self._disk.read(_SEQ_FILE)
        except FileNotFoundError:
            return 0
        return int(text) if re.fullmatch(rb"\d{1,19}\n", text) else 0

    def _trim(self, device: bytes) -> None:
        """Remove the oldest head records beyond `heads_kept`; heads of forks and skipped ones stay. Their packs are
        not touched."""
        known = self._known[device]
        for seq in sorted(known)[:max(0, len(known) - self._heads_kept)]:
            if len(known[seq]) == 1 and not known[seq] & self._skipped:
                (head_hash,) = known[seq]
                try:
                    self._disk.remove(head_path(device, seq, head_hash))
                except NoSpace:
                    return
                del known[seq]
