"""An in-memory Discovery: one LAN on which hosts hear each other unless a partition lies between them.

Leaves multicast DNS to `hinet_node.real.discovery`. News takes a moment to travel, as it does there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import trio

from hinet_node.ports import Announcement
from hinet_simnet.network import Internet

TRAVEL_S = 0.05


class Lan:
    """What is announced at the moment, by all hosts."""

    def __init__(self, internet: Internet) -> None:
        self.internet = internet
        self.announced: dict[int, tuple[str, Announcement]] = {}
        self._number = 0

    def add(self, host: str, announcement: Announcement) -> int:
        self._number += 1
        self.announced[self._number] = (host, announcement)
        self.internet.wake()
        return self._number

    def remove(self, number: int) -> None:
        self.announced.pop(number, None)
        self.internet.wake()

    def host(self, name: str) -> MemoryDiscovery:
        return MemoryDiscovery(self, name)

    def kill(self, name: str) -> None:
        """What a dead host announced is heard no more."""
        for number in [number for number, (host, _) in self.announced.items() if host == name]:
            del self.announced[number]


class MemoryDiscovery:
    """The Discovery port of one host."""

    def __init__(self, lan: Lan, name: str) -> None:
        self._lan = lan
        self._name = name

    @asynccontextmanager
    async def announce(self, announcement: Announcement) -> AsyncIterator[None]:
        number = self._lan.add(self._name, announcement)
        try:
            yield
        finally:
            self._lan.remove(number)

    @asynccontextmanager
    async def browse(self, service: str) -> AsyncIterator[AsyncIterator[Announcement]]:
        heard = self._heard(service)
        try:
            yield heard
        finally:
            await heard.aclose()

    async def _heard(self, service: str) -> AsyncGenerator[Announcement, None]:
        internet = self._lan.internet
        known: dict[str, Announcement] = {}
        while True:
            changed = internet.change()
            now = {announcement.name: announcement for host, announcement in self._lan.announced.values()
                   if announcement.service == service and internet.reaches(self._name, host)}
            news = [announcement for name, announcement in now.items() if known.get(name) != announcement]
            known = now
            if not news:
                await changed.wait()
            await trio.sleep(TRAVEL_S)
            for announcement in news:
                yield announcement
