"""The switch: carries Ethernet frames between the devices' namespaces, as their links let it.

One thread with its own clock and queue, so that what else the simulator does never delays a frame by more than a
moment. Broadcasts and multicasts (ARP, IPv6's neighbours, multicast DNS) go to everybody, each over its own link.
Counts what it was given, by pair. Leaves what a link does to `links`.
"""

from __future__ import annotations

import heapq
import os
import select
import threading
import time
from collections.abc import Mapping

from hinet_simnet.processes.isolation import NetSpace
from hinet_simnet.processes.links import Links

FRAME_BYTES_MAX = 65_536
FRAMES_AT_ONCE = 64
FRAMES_WAITING_MAX = 65_536
"""On all links together; what comes on top is lost, as in any switch."""
MAC_BYTES = 6
MULTICAST_DNS = (bytes.fromhex("01005e0000fb"), bytes.fromhex("3333000000fb"))
"""The groups that networks with "client isolation" drop: IPv4's and IPv6's."""

Counts = dict[tuple[str, str], tuple[int, int]]
"""(source, target) -> frames and bytes that were sent, arrived or not."""


class Switch:
    """Use as a context manager; the namespaces stay the caller's."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._ports: dict[str, NetSpace] = {}
        self._names: dict[int, str] = {}
        self._by_mac: dict[bytes, str] = {}
        self._counted: Counts = {}
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self.blocks_multicast_dns = False
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.EPOLLIN)
        self._closing = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)

    def __enter__(self) -> Switch:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._poll.close()
        os.close(self._wake)

    def plug(self, name: str, space: NetSpace) -> None:
        """Connect a device."""
        for other in self._ports:  # here, so that only this thread ever adds to the links
            self._links.path(name, other)
            self._links.path(other, name)
        with self._lock:
            self._ports = {**self._ports, name: space}
            self._names = {**self._names, space.tap: name}
            self._by_mac = {**self._by_mac, space.mac: name}
        self._poll.register(space.tap, select.EPOLLIN)

    def take_counts(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """What was sent since the last time. Errors: what ended the switch's thread, which is a bug of ours."""
        if self._failed is not None:
            raise self._failed
        with self._lock:
            counted, self._counted = self._counted, {}
        return counted

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                timeout_s = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
                ready = self._poll.poll(timeout_s)
                with self._lock:
                    for descriptor, _ in ready:
                        if descriptor != self._wake:
                            self._receive(descriptor)
                self._deliver()
        except BaseException as error:
            self._failed = error  # told by `take_counts`, in the main thread

    def _receive(self, descriptor: int) -> None:
        source = self._names[descriptor]
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = os.read(descriptor, FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                return  # the interface is down: nothing comes from it
            target = frame[:MAC_BYTES]
            if self.blocks_multicast_dns and target in MULTICAST_DNS:
                continue
            if target[0] & 1:
                for name in self._ports:
                    if name != source:
                        self._forward(source, name, frame)
            elif target in self._by_mac:
                self._forward(source, self._by_mac[target], frame)

    def _forward(self, source: str, target: str, frame: bytes) -> None:
        size_bytes, now_s = len(frame), time.monotonic()
        frames, counted_bytes = self._counted.get((source, target), (0, 0))
        self._counted[source, target] = frames + 1, counted_bytes + size_bytes
        for due_s in self._links.path(source, target).frame_times_s(size_bytes, now_s):
            if len(self._waiting) < FRAMES_WAITING_MAX:
                self._number += 1
                heapq.heappush(self._waiting, (due_s, self._number, self._ports[target].tap, frame))

    def _deliver(self) -> None:
        now_s = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now_s:
            _, _, tap, frame = heapq.heappop(self._waiting)
            try:
                os.write(tap, frame)
            except OSError:
                continue  # the receiver's queue is full or its interface down: a frame is lost, as on a wire
