"""The real Discovery: multicast DNS through `zeroconf`, in threads of its own.

Announces on every real interface, IPv4 and IPv6, and on loopback (so that several nodes on one machine find each other
without any LAN); follows interfaces that come and go. The addresses travel as multiaddrs in the TXT record. Names are
peer ids and random suffixes: nothing names the owner. Without multicast nothing is found and nothing fails: `problem`
says why. Leaves trust to the handshake: whatever is heard here is only a place to dial. SPEC section 5.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from zeroconf import EventLoopBlocked, ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

from hinet_node.errors import NodeError
from hinet_node.ports import Announcement
from hinet_node.real.interfaces import interfaces, with_zones
from hinet_node.sessions.addresses import Address, parse_address

logging.getLogger("zeroconf").setLevel(logging.CRITICAL + 1)  # it warns of each interface without multicast
logger = logging.getLogger(__name__)

POLL_S = 15.0
"""How often this machine's interfaces are looked at; also whenever somebody begins to announce or to browse, which the
agent does anew when its addresses change."""
LOOK_PAUSE_S = 1.0
TTL_S = 120
LOOKUP_MS = 1000
LOOKUPS_MAX = 2
ADDRESSES_MAX = 8
PROPERTIES_MAX = 8
VALUE_BYTES_MAX = 200
NAMES_MAX = 256


class ZeroconfDiscovery:
    """One per agent. `only` names the interfaces to use instead of all real ones (loopback is used all the same)."""

    def __init__(self, *, only: Sequence[str] | None = None) -> None:
        self._only = only
        self._lock = trio.Lock()
        self._users = 0
        self._zeroconf: Zeroconf | None = None
        self._listening: list[str] = []
        self._looked_s = float("-inf")
        self.problem: str | None = None

    @asynccontextmanager
    async def announce(self, announcement: Announcement) -> AsyncIterator[None]:
        info = service_info(announcement)
        registered: list[Zeroconf] = []

        async def keep() -> None:
            """Register, and again when zeroconf had to be started anew."""
            while True:
                zeroconf = await self._current()
                if zeroconf is not None and zeroconf not in registered and await self._tried(_register, zeroconf, info):
                    registered[:] = [zeroconf]
                await trio.sleep(POLL_S)

        async with self._used(keep):
            try:
                yield
            finally:
                if registered and registered[0] is self._zeroconf:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(_unregister, registered[0], info)

    @asynccontextmanager
    async def browse(self, service: str) -> AsyncIterator[AsyncIterator[Announcement]]:
        heard = _Heard(trio.lowlevel.current_trio_token(), self._only)
        browsers: dict[Zeroconf, Any] = {}

        async def keep() -> None:
            while True:
                zeroconf = await self._current()
                if zeroconf is not None and zeroconf not in browsers:
                    browsers.clear()
                    await self._tried(_browse, browsers, zeroconf, service, heard)
                await trio.sleep(POLL_S)

        async with self._used(keep):
            news = heard.news()
            try:
                yield news
            finally:
                heard.closed = True
                await news.aclose()
                for zeroconf, browser in browsers.items():
                    if zeroconf is self._zeroconf:
                        with trio.CancelScope(shield=True):
                            await self._tried(browser.cancel)

    @asynccontextmanager
    async def _used(self, keep: Any) -> AsyncIterator[None]:
        """Run `keep` beside the body; zeroconf is closed when its last user leaves."""
        failed: Exception | None = None
        self._users += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep)
                try:
                    yield
                except Exception as error:  # raised again below: it is the caller's, and no group of ours
                    failed = error
                nursery.cancel_scope.cancel()
            if failed is not None:
                raise failed
        finally:
            self._users -= 1
            if self._users == 0 and self._zeroconf is not None:
                zeroconf, self._zeroconf = self._zeroconf, None
                self._looked_s = float("-inf")
                with trio.CancelScope(shield=True):
                    await self._tried(zeroconf.close)

    async def _tried(self, work: Callable[..., None], *arguments: Any) -> bool:
        """Run one of zeroconf's blocking calls; whether it was done. The node works without discovery, so a failure is
        a problem to be told of, and to be tried again by who needs it."""
        try:
            await trio.to_thread.run_sync(work, *arguments)
        except EventLoopBlocked:
            # This process stood still for long (a laptop that slept): zeroconf's clock ran out, its work goes on.
            return True
        except Exception as error:
            self.problem = f"The LAN can't be used: {error or type(error).__name__}."
            logger.debug("%s", self.problem)
            return False
        return True

    async def _current(self) -> Zeroconf | None:
        """Zeroconf on the interfaces of now, started when needed; None while that fails."""
        async with self._lock:
            if trio.current_time() - self._looked_s < LOOK_PAUSE_S:
                return self._zeroconf
            self._looked_s = trio.current_time()
            wanted = listening_addresses(self._only)
            try:
                with trio.CancelScope(shield=True):  # half started, its threads would outlive us
                    if self._zeroconf is None:
                        self._zeroconf = await trio.to_thread.run_sync(lambda: Zeroconf(interfaces=wanted))
                    elif wanted != self._listening:
                        await trio.to_thread.run_sync(self._zeroconf.update_interfaces, wanted)
                self._listening, self.problem = wanted, None
            except Exception as error:  # OSError, RuntimeError and more: the node works without discovery
                self.problem = f"The LAN can't be searched: {error}."
                logger.debug("%s", self.problem)
            return self._zeroconf


class _Listener(ServiceListener):  # type: ignore[misc]
    """Called on zeroconf's thread."""

    def __init__(self, heard: _Heard) -> None:
        self._heard = heard

    def add_service(self, zeroconf: Zeroconf, kind: str, name: str) -> None:
        try:
            info = ServiceInfo(kind, name)
            if info.load_from_cache(zeroconf) or _looked_up(info, zeroconf):
                announcement = read_service(info, self._heard.only)
                if announcement is not None:
                    self._heard.tell(announcement)
        except Exception as error:  # a name that is none, an interface that goes: here it would end all hearing
            logger.debug("an announcement was left out: %s", error or type(error).__name__)

    def update_service(self, zeroconf: Zeroconf, kind: str, name: str) -> None:
        self.add_service(zeroconf, kind, name)

    def remove_service(self, zeroconf: Zeroconf, kind: str, name: str) -> None:
        """Goodbyes are nobody's business here: a session says its own, and a dial finds out."""


class _Heard:
    """What was heard, the newest for each name, on its way from zeroconf's thread to trio."""

    def __init__(self, token: trio.lowlevel.TrioToken, only: Sequence[str] | None = None) -> None:
        self.closed = False
        self.only = only
        self._token = token
        self._waiting: dict[str, Announcement] = {}
        self._told: dict[str, Announcement] = {}
        self._news = trio.Event()

    def tell(self, announcement: Announcement) -> None:
        """From any thread."""
        try:
            self._token.run_sync_soon(self._take, announcement)
        except trio.RunFinishedError:
            pass  # the agent has ended while zeroconf's thread was still reading

    def _take(self, announcement: Announcement) -> None:
        if self.closed or self._told.get(announcement.name) == announcement:
            return
        for kept in (self._told, self._waiting):
            kept.pop(announcement.name, None)
            kept[announcement.name] = announcement
            while len(kept) > NAMES_MAX:
                del kept[next(iter(kept))]
        self._news.set()

    async def news(self) -> AsyncGenerator[Announcement, None]:
        while True:
            while self._waiting:
                name = next(iter(self._waiting))
                yield self._waiting.pop(name)
            self._news = trio.Event()
            await self._news.wait()


def _looked_up(info: ServiceInfo, zeroconf: Zeroconf) -> bool:
    """Ask the LAN, again when this process stood still meanwhile."""
    for _ in range(LOOKUPS_MAX):
        try:
            return bool(info.request(zeroconf, LOOKUP_MS))
        except EventLoopBlocked:
            continue
    return False


def _browse(browsers: dict[Zeroconf, Any], zeroconf: Zeroconf, service: str, heard: _Heard) -> None:
    browsers[zeroconf] = ServiceBrowser(zeroconf, f"{service}.local.", listener=_Listener(heard))


def _register(zeroconf: Zeroconf, info: ServiceInfo) -> None:
    zeroconf.register_service(info, cooperating_responders=True)  # the suffix makes the name unique: no need to probe


def _unregister(zeroconf: Zeroconf, info: ServiceInfo) -> None:
    try:
        zeroconf.unregister_service(info)
    except Exception as error:  # at the end nobody can do anything about it, and the record expires
        logger.debug("no goodbye on the LAN: %s", error)


def listening_addresses(only: Sequence[str] | None = None) -> list[str]:
    """One IPv4 and one IPv6 address (link-local if it has one) of each interface to search. Loopback, if it is up, by
    IPv4, and whatever `only` says: nodes on one machine find each other by it."""
    found: list[str] = []
    for interface in interfaces(only, loopback=True):
        if interface.is_loopback:
            found[:0] = interface.ip4[:1]
            continue
        found += interface.ip4[:1]
        local = [address for address in interface.ip6 if ipaddress.ip_address(address).is_link_local]
        found += (local or list(interface.ip6))[:1]
    return found


def service_info(announcement: Announcement) -> ServiceInfo:
    """The records of an announcement. The zone of a link-local address means nothing elsewhere and stays here."""
    kind = f"{announcement.service}.local."
    places = [parse_address(text) for text in announcement.addresses[:ADDRESSES_MAX]]
    properties = dict(list(announcement.properties.items())[:PROPERTIES_MAX])
    properties["n"] = announcement.name
    for number, place in enumerate(places):
        properties[f"a{number}"] = str(Address(place.kind, place.host, place.port))
    suffix = os.urandom(4).hex()
    return ServiceInfo(
        kind, f"{announcement.name[:48]}-{suffix}.{kind}", port=places[0].port if places else 0,
        server=f"hinet-{suffix}.local.",
        addresses=[ipaddress.ip_address(place.host).packed for place in places if place.kind in ("ip4", "ip6")],
        properties=properties, host_ttl=TTL_S, other_ttl=TTL_S)


def read_service(info: ServiceInfo, only: Sequence[str] | None = None) -> Announcement | None:
    """What somebody announced, parsed and bounded; None for what is not ours."""
    texts: dict[str, str] = {}
    for key, value in list(info.properties.items())[:ADDRESSES_MAX + PROPERTIES_MAX + 1]:
        if value is None or len(key) > 32 or len(value) > VALUE_BYTES_MAX:
            return None
        try:
            texts[key.decode("ascii")] = value.decode("utf-8")
        except UnicodeDecodeError:
            return None
    name = texts.pop("n", "")
    addresses: list[str] = []
    for number in range(ADDRESSES_MAX):
        text = texts.pop(f"a{number}", None)
        if text is None:
            continue
        try:
            addresses += with_zones(parse_address(text), only)
        except NodeError:
            continue  # perhaps a newer kind of address
    if not name:
        return None
    return Announcement(name, info.type.removesuffix(".local."), tuple(addresses), texts)
