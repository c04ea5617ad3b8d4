"""Where the household's devices were last found: from the LAN, from their hellos, and from the disk.

A cache: losing it costs a discovery. Everything in it came from other machines, so it is parsed, bounded and tried, and
never trusted (the key that Noise proves decides). Leaves dialling to `hinet_node.sessions.peers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hinet_node.errors import NodeError
from hinet_node.ports import Disk
from hinet_node.sessions.addresses import Address, parse_address
from hinet_protocol import canonical
from hinet_protocol.errors import ProtocolError

FILE = "peers/addresses"
DEVICES_MAX = 256
ADDRESSES_MAX = 8
FILE_BYTES_MAX = 1 << 20


class AddressBook:
    """Addresses by device key. What was heard on the LAN comes first, what has failed last; what has failed while
    another address led to the device is forgotten."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._heard: dict[bytes, tuple[str, ...]] = {}
        self._boots: dict[bytes, str] = {}
        self._kept: dict[bytes, tuple[str, ...]] = _read(disk)
        self._used: dict[bytes, str] = {public: places[0] for public, places in self._kept.items() if places}
        """Where each was last dialled with success: perhaps a way in that the device does not know of itself."""
        self._said: dict[bytes, tuple[str, ...]] = {}
        self._failed: dict[bytes, dict[str, None]] = {}

    def hear(self, public: bytes, addresses: Sequence[str], boot: str = "") -> bool:
        """A device announced itself on the LAN; True when this is news: other addresses, or it was started anew."""
        found = tuple(str(address) for address in _parsed(addresses))[:ADDRESSES_MAX]
        if not found or (self._heard.get(public) == found and self._boots.get(public) == boot):
            return False
        self._heard.pop(public, None)
        self._heard[public], self._boots[public] = found, boot
        while len(self._heard) > DEVICES_MAX:
            oldest = next(iter(self._heard))
            del self._heard[oldest], self._boots[oldest]
        for address in found:  # it says itself that it is there
            self._failed.get(public, {}).pop(address, None)
        return True

    def fail(self, public: bytes, address: str, *, met: bool = False) -> None:
        """The device was not found at an address of ours; `met` says that it is connected by another one meanwhile."""
        if address in self.find(public):
            self._failed.setdefault(public, {})[address] = None
            if met:
                self.keep(public, None, self._said.get(public, ()))

    def keep(self, public: bytes, used: str | None, said: Sequence[str]) -> None:
        """A session is open: remember where it was dialled (`used`) and where the device says it listens.

        Link-local addresses are left out (their zone is the other machine's), and loopback ones unless that is how we
        reached it.
        """
        self._said[public] = tuple(said)[:4 * ADDRESSES_MAX]
        failed = self._failed.pop(public, {})
        if public in self._heard and failed:
            left = tuple(address for address in self._heard[public] if address not in failed)
            self._heard[public] = left
        used = used or self._used.get(public)
        if used in failed:
            used = None
        near = used is not None and _is_loopback(used)
        offered = [address for address in _parsed(said)
                   if not address.is_link_local and address.port and (near or not address.is_loopback)]
        found = tuple(dict.fromkeys([*([used] if used else []), *map(str, offered)]))[:ADDRESSES_MAX]
        if not found:
            return
        if used:
            self._used[public] = used
        else:
            self._used.pop(public, None)
        if self._kept.get(public) != found:
            self._kept.pop(public, None)
            self._kept[public] = found
            while len(self._kept) > DEVICES_MAX:
                oldest = next(iter(self._kept))
                del self._kept[oldest]
                self._used.pop(oldest, None)
                self._said.pop(oldest, None)
            self._write()

    def find(self, public: bytes) -> tuple[str, ...]:
        """Where to try, best first: what failed last time comes late, and loopback, which can only be a guess unless
        there is nothing else."""
        known = dict.fromkeys((*self._heard.get(public, ()), *self._kept.get(public, ())))
        failed = self._failed.get(public, {})
        return tuple(sorted(known, key=lambda address: (_is_loopback(address), address in failed)))

    def _write(self) -> None:
        try:
            value = {key.hex(): list(places) for key, places in self._kept.items()}
            self._disk.write_atomic(FILE, canonical.encode(value), private=True)
        except NodeError:
            pass  # a full disk costs the memory of where a device was, and nothing else


def _parsed(addresses: Iterable[str]) -> list[Address]:
    found = []
    for text in list(addresses)[:4 * ADDRESSES_MAX]:
        try:
            found.append(parse_address(text))
        except NodeError:
            continue  # from another machine: perhaps a newer kind of address
    return found


def _is_loopback(text: str) -> bool:
    return any(address.is_loopback for address in _parsed([text]))


def _read(disk: Disk) -> dict[bytes, tuple[str, ...]]:
    try:
        value = canonical.decode(disk.read(FILE), FILE_BYTES_MAX)
        return {bytes.fromhex(key): tuple(str(address) for address in _parsed(places)) for key, places in value.items()}
    except (FileNotFoundError, ProtocolError, ValueError, TypeError, AttributeError):
        return {}  # missing or damaged: it is only a cache
