"""The number that this device has reserved for its heads, on disk in two places. SPEC.md, 6.4 and 6.5.

    vault/seq       seq 12 kept 11 1a2b3c4d      reserved, newest own head on disk then, check
    device.wrote    the device's public key in hexadecimal: it has written to the vault

The check finds a changed byte. The second file lies outside `vault/`, so that a device whose heads and numbers are both
gone still knows that there were some, and does not begin again with number 1. Leaves heads to `headstore`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from blake3 import blake3

from hinet_node.errors import IntegrityError, NoSpace
from hinet_node.ports import Disk
from hinet_node.vault.packfolder import reason

SEQ_FILE = "vault/seq"
WROTE_FILE = "device.wrote"
_FORM = re.compile(rb"(seq (\d{1,19}) kept (\d{1,19})) ([0-9a-f]{8})\n")
_EARLIER_FORM = re.compile(rb"(\d{1,19})\n")


@dataclass(frozen=True)
class Seq:
    """What the file says. `fault` is why it says nothing; empty when it does, or when there is no file."""

    number: int = 0
    kept: int = 0
    fault: str = ""
    missing: bool = False


def read_seq(disk: Disk) -> Seq:
    """Errors: none; a file that can't be read or is no such file is a fault."""
    try:
        text = disk.read(SEQ_FILE)
    except FileNotFoundError:
        return Seq(missing=True)
    except (OSError, IntegrityError) as error:
        return Seq(fault=reason(error))
    found = _FORM.fullmatch(text)
    if found and _check(found[1]) == found[4]:
        return Seq(int(found[2]), int(found[3]))
    earlier = _EARLIER_FORM.fullmatch(text)
    return Seq(int(earlier[1])) if earlier else Seq(fault="its bytes changed")


def write_seq(disk: Disk, number: int, kept: int) -> None:
    """Errors: `NoSpace`, `OSError`."""
    text = b"seq %d kept %d" % (number, kept)
    disk.write_atomic(SEQ_FILE, text + b" " + _check(text) + b"\n")


def has_written(disk: Disk, device_public: bytes) -> bool:
    """Whether this device, under this key, has ever written a head."""
    try:
        return disk.read(WROTE_FILE) == _wrote(device_public)
    except (OSError, IntegrityError):
        return False


def note_written(disk: Disk, device_public: bytes) -> None:
    """A head of this device is on disk. A disk that is full is asked again at the next start."""
    try:
        disk.write_atomic(WROTE_FILE, _wrote(device_public))
    except (NoSpace, OSError):
        return


def _wrote(device_public: bytes) -> bytes:
    return device_public.hex().encode() + b"\n"


def _check(text: bytes) -> bytes:
    return blake3(text).hexdigest()[:8].encode()
