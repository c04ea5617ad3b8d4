"""An in-memory Discovery: LANs on which hosts hear each other's announcements as datagrams.

What zeroconf does, in its times: an announcement is sent three times, and again when three quarters of its life are
over (somebody on the LAN asks then); a host that begins to browse asks three times. Each datagram travels over the link
between the two hosts, where it is lost, doubled or late, so a lossy LAN finds everybody later and nobody never. A
goodbye is sent three times too; who browses hears what was said goodbye to as new when it comes back. Leaves multicast
DNS itself to `hinet_node.real.discovery`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from hinet_node.ports import Announcement
from hinet_simnet.clock import call_at
from hinet_simnet.network import Internet

TRAVEL_S = 0.05
"""What hosts wait before they answer, on top of the link."""
SAYINGS_S = (0.0, 0.225, 0.45)
QUESTIONS_S = (0.02, 1.0, 3.0)
REFRESH_S = 90.0
HEARD_MAX = 1_024


@dataclass(eq=False)
class _Said:
    """An announcement that is in force."""

    host: str
    announcement: Announcement
    ended: bool = False


class Lan:
    """One segment. Hosts of different LANs share an internet and hear nothing of each other here."""

    def __init__(self, internet: Internet) -> None:
        self.internet = internet
        self._said: dict[_Said, None] = {}
        self._browsing: dict[_Browser, None] = {}

    def host(self, name: str) -> MemoryDiscovery:
        """The Discovery port of a host on this LAN."""
        return MemoryDiscovery(self, name)

    def kill(self, name: str) -> None:
        """A dead host says nothing more, not even goodbye."""
        for said in [said for said in self._said if said.host == name]:
            said.ended = True
            del self._said[said]
        for browser in [browser for browser in self._browsing if browser.host == name]:
            del self._browsing[browser]

    def announce(self, host: str, announcement: Announcement) -> _Said:
        said = _Said(host, announcement)
        self._said[said] = None
        for after_s in SAYINGS_S:
            self._later(after_s, self._say, said)
        self._later(REFRESH_S, self._refresh, said)
        return said

    def goodbye(self, said: _Said) -> None:
        if not said.ended:
            said.ended = True
            del self._said[said]
            for after_s in SAYINGS_S:
                self._later(after_s, self._unsay, said)

    def browse(self, browser: _Browser) -> None:
        self._browsing[browser] = None
        for after_s in QUESTIONS_S:
            self._later(after_s, self._ask, browser)

    def leave(self, browser: _Browser) -> None:
        self._browsing.pop(browser, None)

    # ---- datagrams -----------------------------------------------------------------------------------------------

    def _say(self, said: _Said) -> None:
        if not said.ended and self.internet.awake(said.host):
            for browser in self._browsing:
                self._send(said.host, browser.host, browser.hear, said.announcement)

    def _refresh(self, said: _Said) -> None:
        if not said.ended:
            self._say(said)
            self._later(REFRESH_S, self._refresh, said)

    def _unsay(self, said: _Said) -> None:
        for browser in self._browsing:
            self._send(said.host, browser.host, browser.forget, said.announcement)

    def _ask(self, browser: _Browser) -> None:
        if browser in self._browsing:
            for said in self._said:
                self._send(browser.host, said.host, self._answer, browser, said)

    def _answer(self, browser: _Browser, said: _Said) -> None:
        if not said.ended and self.internet.awake(said.host):
            self._send(said.host, browser.host, browser.hear, said.announcement)

    def _send(self, source: str, target: str, act: Callable[..., None], *args: Any) -> None:
        now_s = trio.current_time()
        if source == target:
            call_at(now_s + TRAVEL_S, act, *args)
        elif self.internet.reaches(source, target):
            for due_s in self.internet.link(source, target).datagram_arrivals_s(now_s):
                call_at(due_s + TRAVEL_S, act, *args)

    def _later(self, after_s: float, act: Callable[..., None], *args: Any) -> None:
        call_at(trio.current_time() + after_s, act, *args)


class _Browser:
    """What one host hears of one service; bounded, and the same again is not news."""

    def __init__(self, lan: Lan, host: str, service: str) -> None:
        self.host = host
        self._lan = lan
        self._service = service
        self._known: OrderedDict[str, Announcement] = OrderedDict()
        self._news: OrderedDict[str, Announcement] = OrderedDict()
        self._heard = trio.Event()

    def hear(self, announcement: Announcement) -> None:
        # Two hosts that announce one name with different facts (a clone) are both news, again and again.
        name = announcement.name
        if announcement.service != self._service or self._known.get(name) == announcement:
            return
        self._known[name] = self._news[name] = announcement
        while len(self._known) > HEARD_MAX:
            gone, _ = self._known.popitem(last=False)
            self._news.pop(gone, None)
        self._heard.set()

    def forget(self, announcement: Announcement) -> None:
        if self._known.get(announcement.name) == announcement:
            del self._known[announcement.name]

    def __aiter__(self) -> _Browser:
        return self

    async def __anext__(self) -> Announcement:
        await trio.lowlevel.checkpoint()
        internet = self._lan.internet
        while not self._news or not internet.awake(self.host):
            if self._news:
                await internet.wait_for_way(self.host, self.host)
                continue
            self._heard = trio.Event()
            await self._heard.wait()
        return self._news.popitem(last=False)[1]


class MemoryDiscovery:
    """`hinet_node.ports.Discovery` of one host."""

    def __init__(self, lan: Lan, name: str) -> None:
        self._lan = lan
        self._name = name

    @asynccontextmanager
    async def announce(self, announcement: Announcement) -> AsyncIterator[None]:
        said = self._lan.announce(self._name, announcement)
        try:
            yield
        finally:
            self._lan.goodbye(said)

    @asynccontextmanager
    async def browse(self, service: str) -> AsyncIterator[AsyncIterator[Announcement]]:
        browser = _Browser(self._lan, self._name, service)
        self._lan.browse(browser)
        try:
            yield browser
        finally:
            self._lan.leave(browser)
