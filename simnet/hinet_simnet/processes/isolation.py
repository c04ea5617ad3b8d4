"""A network and a small disk of a device's own, from the Linux kernel: namespaces, a TAP interface, a tmpfs.

Nothing here has a name in the system: namespaces and mounts live as long as descriptors of this process and the
processes inside them, so that a killed simulator leaves nothing behind. Needs root; `net_refusal` and `disk_refusal`
say what the kernel refuses. Leaves what passes between networks to `switch`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

CLONE_FS, CLONE_NEWNS, CLONE_NEWNET = 0x200, 0x20000, 0x40000000
MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_REC, MS_PRIVATE = 2, 4, 32, 16384, 1 << 18
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFHWADDR = 0x8913, 0x8914, 0x8916, 0x891C, 0x8924
IFF_UP, ARPHRD_ETHER = 0x1, 1
INTERFACE = "eth0"
NETMASK = "255.255.0.0"
DEVICES_MAX = 60_000
PAGE_BYTES = 4096

T = TypeVar("T")


@dataclass(frozen=True)
class NetSpace:
    """One network namespace. `tap` gives and takes the Ethernet frames of its only interface; it does not block."""

    namespace: int
    tap: int
    mac: bytes
    address: str

    @classmethod
    def make(cls, number: int) -> NetSpace:
        """The network of the device with this number, from 0. Errors: `OSError` when the kernel refuses."""
        assert 0 <= number < DEVICES_MAX, "the addresses of one network are used up"
        high, low = divmod(number + 1, 250)
        mac = bytes([0x02, 0x68, 0x69, 0, high, low])
        address = f"10.77.{high}.{low + 1}"

        def build() -> NetSpace:
            _libc("unshare", CLONE_NEWNET)
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), IFF_TAP | IFF_NO_PI))
                _configure(mac, address)
                namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            except BaseException:
                os.close(tap)
                raise
            return cls(namespace, tap, mac, address)

        return _in_own_thread(build)

    def close(self) -> None:
        os.close(self.tap)
        os.close(self.namespace)


@dataclass(frozen=True)
class SmallDisk:
    """A tmpfs of a given size, mounted at `path` inside a mount namespace. `root` is its root folder, open: what is in
    it is reached from here by `/proc/self/fd/…`, since the path is empty outside of the namespace."""

    namespace: int
    root: int
    path: Path

    @classmethod
    def make(cls, path: Path, size_bytes: int) -> SmallDisk:
        """Errors: `OSError` when the kernel refuses."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

        def build() -> SmallDisk:
            _libc("unshare", CLONE_NEWNS)
            _libc("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
            _libc("mount", b"tmpfs", os.fsencode(path), b"tmpfs", MS_NOSUID | MS_NODEV,
                  f"size={_pages(size_bytes)},mode=0700".encode())
            root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return cls(os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), root, path)
            except BaseException:
                os.close(root)
                raise

        return _in_own_thread(build)

    @property
    def seen_from_here(self) -> Path:
        return Path(f"/proc/self/fd/{self.root}")

    def leave_free(self, free_bytes: int) -> None:
        """Shrink or grow the disk so that so many bytes are free, rounded up to a page."""
        usage = os.fstatvfs(self.root)
        used_bytes = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
        self.resize(used_bytes + _pages(free_bytes))

    def resize(self, size_bytes: int) -> None:
        def remount() -> None:
            _libc("unshare", CLONE_FS)
            _libc("setns", self.namespace, CLONE_NEWNS)
            _libc("mount", b"tmpfs", os.fsencode(self.path), b"tmpfs", MS_NOSUID | MS_NODEV | MS_REMOUNT,
                  f"size={max(_pages(size_bytes), PAGE_BYTES)}".encode())

        _in_own_thread(remount)

    def close(self) -> None:
        os.close(self.root)
        os.close(self.namespace)


def enter(namespace: int) -> None:
    """Move this process, which must have one thread only, into a namespace. Errors: `OSError`."""
    _libc("setns", namespace, 0)


@cache
def net_refusal() -> str:
    """Why devices can't have networks of their own here; empty when they can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    try:
        NetSpace.make(0).close()
    except OSError as error:
        return f"the kernel refuses a network namespace with a TAP interface ({_plainly(error)})"
    return ""


@cache
def disk_refusal() -> str:
    """Why devices can't have small disks of their own here; empty when they can."""
    if sys.platform != "linux":
        return "mount namespaces are Linux's"
    try:
        with tempfile.TemporaryDirectory(prefix="hinet-simnet-") as folder:
            disk = SmallDisk.make(Path(folder, "disk"), 1 << 20)
            try:
                disk.resize(1 << 21)
            finally:
                disk.close()
    except OSError as error:
        return f"the kernel refuses a tmpfs in a mount namespace ({_plainly(error)})"
    return ""


def _plainly(error: OSError) -> str:
    return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}; it takes root"


def _pages(size_bytes: int) -> int:
    """tmpfs counts in pages, and a size of 0 would mean no limit at all."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _configure(mac: bytes, address: str) -> None:
    """Give the calling thread's network an address, and bring it and loopback up. IPv6 finds its own address."""
    name = INTERFACE.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFHWADDR, struct.pack("16sH6s8x", name, ARPHRD_ETHER, mac))
        for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, NETMASK)):
            fcntl.ioctl(control, request,
                        struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(value)))
        for interface in (b"lo", name):
            flags = struct.unpack("16sH", fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sH22x", interface, 0))[:18])
            fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", interface, flags[1] | IFF_UP))


def _in_own_thread(work: Callable[[], T]) -> T:
    """Namespaces belong to a thread: a thread that is used for nothing else afterwards."""
    result: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failed.append(error)  # raised again below, in the caller's thread

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return result[0]


def _libc(call: str, *arguments: Any) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, call)(*(ctypes.c_ulong(one) if isinstance(one, int) and call == "mount" else one
                                for one in arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
