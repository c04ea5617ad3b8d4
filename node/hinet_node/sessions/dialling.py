"""When to dial whom: the devices of the chain that have no session, at the addresses in the book, with patience.

Of two devices the one with the lower key dials at once and the other a second later, so that they seldom dial each
other at the same time, and still meet when only one of them knows of the other. Failures double the wait, with jitter;
news of a device (it announced itself anew, a long session ended, our own address changed) ends it. A device that is
reached through a relay is still tried directly, with the same patience. Leaves sessions to `peers`, and relays to
`relay`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from hinet_node.errors import NetworkError, NodeError
from hinet_node.ports import Connection, Randomness
from hinet_node.sessions.address_book import AddressBook
from hinet_node.sessions.session import ChainStore, Session

FIRST_WAIT_S = 0.05
HIGHER_KEY_WAIT_S = 1.0
BACKOFF_S = 1.0
BACKOFF_S_MAX = 60.0
DIALS_MAX = 8
DIAL_S = 10.0
STAGGER_S = 0.3
HEARD_PAUSE_S = 2.0
"""Announcements that come sooner after one another end no wait: anybody on the LAN may send them."""
LASTING_S = 10.0
"""A session that ends sooner counts as a failure: two devices that can't agree must not dial each other in a loop."""


@dataclass
class Target:
    """A device (by key) or a static address that is to be dialled. `due_s` is trio's time."""

    due_s: float
    failures: int = 0
    dialling: bool = False
    public: bytes | None = None
    opened_s: float | None = None
    """When the last dial opened a session whose end was not looked at yet."""
    held_until_s: float = float("-inf")


class Caller(Protocol):
    """What the dialler needs of `Peers`."""

    store: ChainStore
    public: bytes

    def session_with(self, public: bytes) -> Session | None: ...

    async def dial(self, addresses: Sequence[str], *, expected_public: bytes | None = None,
                   timeout_s: float = 15.0) -> Session: ...


class Dialler:
    """Keeps dialling until each device of the chain has a session."""

    def __init__(self, caller: Caller, book: AddressBook, randomness: Randomness, static: Sequence[str]) -> None:
        self._caller = caller
        self._book = book
        self._randomness = randomness
        self._static = tuple(dict.fromkeys(static))
        self._targets: dict[bytes | str, Target] = {}
        self._news = trio.Event()
        self._dials = 0
        self._heard_s: dict[bytes, float] = {}

    def look(self, public: bytes | None = None, *, heard: bool = False) -> None:
        """There is news: a session with this device ended, or (`heard`) it announced itself anew, or the chain grew."""
        if heard and public is not None:
            heard = trio.current_time() - self._heard_s.get(public, float("-inf")) >= HEARD_PAUSE_S
            if heard and self._caller.store.chain().is_member(public):  # so that strangers fill no memory
                self._heard_s[public] = trio.current_time()
        for key, target in self._targets_of(public) if public is not None else ():
            self._look_again(key, target, heard)
        self._news.set()

    def hold(self, public: bytes, seconds: float) -> None:
        """Don't dial this device for so long, whatever is heard of it."""
        self._targets.setdefault(public, Target(0.0))
        for _, target in self._targets_of(public):
            target.held_until_s = trio.current_time() + seconds
            target.due_s = max(target.due_s, target.held_until_s)

    def _targets_of(self, public: bytes) -> list[tuple[bytes | str, Target]]:
        """By its key, and by the static addresses that it was found at."""
        return [(key, target) for key, target in self._targets.items() if public in (key, target.public)]

    def _look_again(self, key: bytes | str, target: Target, heard: bool) -> None:
        now_s, public = trio.current_time(), key if isinstance(key, bytes) else target.public
        if target.dialling or target.held_until_s > now_s or (public is not None and self._settled(public)):
            return
        opened_s, target.opened_s = target.opened_s, None
        if heard or (opened_s is not None and now_s - opened_s >= LASTING_S):
            target.failures = 0
            target.due_s = min(target.due_s, now_s)
            if isinstance(key, bytes):
                del self._targets[key]  # a new one starts with the first wait
        elif opened_s is not None:
            self._put_off(target)

    async def run(self) -> None:
        """Dial until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._news = trio.Event()
                next_s = self._start_due(nursery)
                with trio.move_on_at(next_s):
                    await self._news.wait()

    def _start_due(self, nursery: trio.Nursery) -> float:
        """Start what is due; returns when to look again (trio's time)."""
        now_s = trio.current_time()
        next_s = float("inf")
        for key, target in self._wanted(now_s):
            if target.dialling:
                continue
            if target.due_s <= now_s and self._dials < DIALS_MAX:
                target.dialling = True
                self._dials += 1
                nursery.start_soon(self._dial, key, target)
            else:
                next_s = min(next_s, max(target.due_s, now_s + FIRST_WAIT_S))
        return next_s

    def _wanted(self, now_s: float) -> list[tuple[bytes | str, Target]]:
        """The devices without a session that we know where to find, and the static addresses without one."""
        chain, own = self._caller.store.chain(), self._caller.public
        if not chain.is_member(own):
            return []  # this device was put out of the household: nobody would open to it
        wanted: list[tuple[bytes | str, Target]] = []
        for device in chain.members():
            public = device.public
            if public == own or self._settled(public) or not self._places(public):
                continue
            wait_s = FIRST_WAIT_S if own < public else HIGHER_KEY_WAIT_S
            wanted.append((public, self._targets.setdefault(public, Target(now_s + wait_s * self._jitter()))))
        for address in self._static:
            target = self._targets.setdefault(address, Target(now_s))
            found = target.public
            if found is None or (found != own and not self._settled(found)):
                wanted.append((address, target))
        return wanted

    def _settled(self, public: bytes) -> bool:
        """There is a session that can't be bettered."""
        session = self._caller.session_with(public)
        return session is not None and not session.relayed

    def _places(self, public: bytes) -> Sequence[str]:
        """Where to dial a device: anywhere, or only directly while there is a session through a relay."""
        return self._book.find(public, direct=self._caller.session_with(public) is not None)

    async def _dial(self, key: bytes | str, target: Target) -> None:
        try:
            if isinstance(key, bytes):
                await self._caller.dial(self._places(key), expected_public=key, timeout_s=DIAL_S)
            else:
                target.public = (await self._caller.dial([key], timeout_s=DIAL_S)).public
            # Failures are forgotten once the session has lasted: one that is closed at once is one more failure.
            target.opened_s = trio.current_time()
        except NodeError as error:  # a network's, or a usage error: an address in the settings that is none
            if error.code == "E_SELF":
                target.public = self._caller.public
            self._put_off(target)
        finally:
            target.dialling = False
            self._dials -= 1
            self._news.set()

    def _put_off(self, target: Target) -> None:
        wait_s = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(target.failures, 10))
        target.failures += 1
        # A dial may have been under way when the device was put on hold.
        target.due_s = max(trio.current_time() + wait_s * self._jitter(), target.held_until_s)

    def _jitter(self) -> float:
        """Between a half and one and a half."""
        return 0.5 + int.from_bytes(self._randomness.draw(4), "big") / 2**32


class Network(Protocol):
    """Whatever connects to an address."""

    async def dial(self, address: str, expected_public: bytes | None, timeout_s: float) -> Connection: ...


async def race(network: Network, addresses: Sequence[str], expected_public: bytes | None,
               timeout_s: float, failed_at: Callable[[str], None] = lambda address: None) -> Connection:
    """Connect to the first address that answers. Each next one starts when the one before failed, or a little later.
    `failed_at` is told of each that failed (not of those that another one overtook).

    Errors: `NetworkError` that names each try.
    """
    won: list[Connection] = []
    failures: list[NodeError] = []

    async def attempt(address: str, failed: trio.Event) -> None:
        try:
            connection = await network.dial(address, expected_public, timeout_s)
        except NodeError as error:
            failures.append(error)
            failed_at(address)
            failed.set()
            return
        if won:
            await connection.close()
        else:
            won.append(connection)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for address in addresses:
            failed = trio.Event()
            nursery.start_soon(attempt, address, failed)
            with trio.move_on_after(STAGGER_S):
                await failed.wait()
    if won:
        return won[0]
    if not failures:
        raise NetworkError("There is no address to dial.")
    raise NetworkError(" ".join(str(error) for error in failures[:4]), code=failures[0].code)
