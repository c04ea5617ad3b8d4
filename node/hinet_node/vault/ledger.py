"""What collecting remembers, in a file of the home: `vault/ledger`. SPEC.md, 6.10.

Which packs this device has found not to need, so that its next heads leave them out; since when of its running time
nobody has retained a pack; which head of each device was met last, and when; the running time itself.

Losing the file only delays: what was given up is retained again, and times begin anew. So a file that is damaged counts
as none, and one that can't be written when it must be is removed. Leaves what it means to `counting` and `collect`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from blake3 import blake3

from hinet_node.errors import NoSpace
from hinet_node.ports import Disk
from hinet_protocol import canonical, schema
from hinet_protocol.errors import EncodingError, LimitError, MessageError

_FILE = "vault/ledger"
_FILE_BYTES_MAX = 64 << 20
_SIGHTINGS_MAX = 4_096
_TIME_MAX = 2**50
"""Milliseconds: thirty thousand years, and exact as a float."""
_ID_BYTES, _TIME_BYTES, _CHECK_BYTES = 32, 8, 32

_time = schema.integer(0, _TIME_MAX)
_pair = schema.row(_time, schema.uint63)
_FORM = schema.row(
    _time, _pair, _pair, schema.binary(0, _FILE_BYTES_MAX), schema.binary(0, _FILE_BYTES_MAX),
    schema.list_of(schema.row(schema.bytes32, schema.bytes32, _time), _SIGHTINGS_MAX))
"""Time run, what was given up, what was said again, packs that are not needed, packs that nobody retains, sightings."""


class Ledger:
    """Blocks on the disk; used by one thread at a time. `retained` is what this device's newest head retains: whatever
    an older file says, that is needed."""

    def __init__(self, disk: Disk, retained: Collection[bytes]) -> None:
        self._disk = disk
        self.changes = 0
        """Rises whenever what counts may have changed."""
        self.ran_s = 0.0
        """Seconds that this device has run, as far as is known; never from the wall clock."""
        self.given_up = (0, 0)
        """Until when, and but for how many versions, the owner has given the past up."""
        self.restated = (0.0, 0)
        """When this device last gave packs up, by its running time (0: never), and how often it said so since."""
        self.unneeded: frozenset[bytes] = frozenset()
        self._idle: dict[bytes, float] = {}
        self._sightings: dict[bytes, tuple[bytes, float]] = {}
        self._load()
        self.unneeded -= frozenset(retained)

    # ---- packs that this device does not need --------------------------------------------------------------------

    def set_unneeded(self, names: Collection[bytes]) -> None:
        """Replace the set."""
        wanted = frozenset(names)
        if wanted != self.unneeded:
            self.unneeded = wanted
            self.changes += 1
            self._save()

    def take_out(self, names: Iterable[bytes]) -> None:
        """These are needed again."""
        self.set_unneeded(self.unneeded - frozenset(names))

    def set_given_up(self, until_s: int, versions: int) -> None:
        """The owner gave up what was replaced until then, but for so many versions of each name."""
        self.given_up = (until_s, versions)
        self._save()

    def set_restated(self, gave_up_at: float, times: int) -> None:
        """Packs were given up at this running time, and that was said again so many times."""
        self.restated = (max(gave_up_at, 0.001), times)
        self._save()

    # ---- time ----------------------------------------------------------------------------------------------------

    def tick(self, passed_s: float, newest: Mapping[bytes, bytes]) -> None:
        """So many seconds of running have passed, and these are the newest heads (device -> hash) now."""
        self.ran_s += max(0.0, passed_s)
        self._sightings = {device: (head, self._sightings[device][1]) if self._sightings.get(device, (b"",))[0] == head
                           else (head, self.ran_s) for device, head in sorted(newest.items())}
        self.changes += 1
        self._save()

    def silent_s(self, device: bytes, head: bytes) -> float:
        """Running seconds for which this has been the device's newest head."""
        seen, at = self._sightings.get(device, (b"", 0.0))
        return self.ran_s - at if seen == head else 0.0

    # ---- packs that nobody retains -------------------------------------------------------------------------------

    def keep_idle(self, names: Collection[bytes]) -> dict[bytes, float]:
        """These, and no others, are retained by nobody now; name -> running seconds for which that has been so."""
        idle = {name: self._idle.get(name, self.ran_s) for name in names}
        if idle.keys() != self._idle.keys():
            self._idle = idle
            self._save()
        return {name: max(0.0, self.ran_s - since) for name, since in idle.items()}

    # ---- the file ------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        try:
            if self._disk.size(_FILE) > _FILE_BYTES_MAX:
                return
            raw = self._disk.read(_FILE)
            body, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
            if blake3(body).digest() != check:
                return
            found = _FORM(canonical.decode(body, _FILE_BYTES_MAX), "ledger")
        except (OSError, EncodingError, LimitError, MessageError):
            return
        ran, given_up, restated, unneeded, idle, sightings = found
        self.ran_s, self.given_up, self.restated = _s(ran), tuple(given_up), (_s(restated[0]), restated[1])
        self.unneeded = frozenset(_cut(unneeded, _ID_BYTES))
        self._idle = {row[:_ID_BYTES]: _s(min(_TIME_MAX, int.from_bytes(row[_ID_BYTES:], "big")))
                      for row in _cut(idle, _ID_BYTES + _TIME_BYTES)}
        self._sightings = {device: (head, _s(at)) for device, head, at in sightings}

    def _save(self) -> None:
        body = canonical.encode([
            _ms(self.ran_s), list(self.given_up), [_ms(self.restated[0]), self.restated[1]],
            b"".join(sorted(self.unneeded)),
            b"".join(name + _ms(since).to_bytes(_TIME_BYTES, "big") for name, since in sorted(self._idle.items())),
            [[device, head, _ms(at)] for device, (head, at) in sorted(self._sightings.items())]])
        try:
            self._disk.write_atomic(_FILE, body + blake3(body).digest())
        except (NoSpace, OSError):
            self._forget()

    def _forget(self) -> None:
        """What is in memory counts until the next start; what is on disk must not be believed then."""
        try:
            self._disk.remove(_FILE)
        except (NoSpace, OSError):
            return  # a disk that can't be changed at all: no head can be written to it either


def _ms(seconds: float) -> int:
    return int(seconds * 1_000)


def _s(milliseconds: int) -> float:
    return milliseconds / 1_000


def _cut(raw: bytes, size_bytes: int) -> list[bytes]:
    return [raw[at:at + size_bytes] for at in range(0, len(raw) - size_bytes + 1, size_bytes)]
