"""The joining side: find the inviting device, run the join machine, take up the chain that comes.

Everything that can fail on this machine alone is checked first (`check_clock`, `check_name`, `preflight`; the command
line checks port and folder), so that no code is spent in vain. What goes to disk has an order: where the inviter is and
the settings, then the chain, whose head makes the home a household's; so a kill at any moment leaves the home free or
joined, and its key stays for the next try. The rules are `hinet_protocol.join`'s. SPEC section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from hinet_node.belonging.certificates import CLOCK_MIN_UNIX_S
from hinet_node.belonging.invite import PAIR_SERVICE
from hinet_node.belonging.join_stream import JOIN_PROTOCOL, Post, run_machine
from hinet_node.belonging.membership import Membership, draw_keys, refuse_second
from hinet_node.errors import NetworkError, NodeError, NoSpace, TryAgain, UsageError
from hinet_node.home import DEVICE_KEY
from hinet_node.ports import Connection, Disk, Ports, Randomness
from hinet_node.sessions import seen
from hinet_node.sessions.address_book import AddressBook
from hinet_node.sessions.dialling import race
from hinet_protocol import join, limits
from hinet_protocol.chain import Chain, Device
from hinet_protocol.errors import CodeUnknown, DeviceRevoked, JoinError, SessionBusy
from hinet_protocol.identity import DeviceKeys, identity_text
from hinet_protocol.invitations import Code, Ticket
from hinet_protocol.join.secrets import join_entropy_bytes

FREE_BYTES_MIN = 64 * 1_048_576
DIAL_TIMEOUT_S = 5.0
BUSY_WAIT_S = 1.0
CLOCK_MAX_UNIX_S = 4_102_444_800  # 2100: nobody runs this so late

Report = Callable[[dict[str, str]], None]
"""Told what happens: {state: looking|found|busy|asking|new-key, ...}."""
Settle = Callable[[Device], None]
"""Keeps the settings of the device that this home is about to be."""


class Place(Protocol):
    """The home that joins: a free one, or one that holds a chain and a vault and gets keys of its own."""

    def new_keys(self) -> DeviceKeys:
        """Further keys, durable, because the household has removed the ones that were tried."""

    def take_up(self, keys: DeviceKeys, chain: Chain) -> Membership:
        """Make a verified chain, which certifies these keys, the home's own, durably. Errors: `NodeError`."""


class FreeHome:
    """A home that belongs to no household yet."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def new_keys(self) -> DeviceKeys:
        return _new_keys(self._ports.disk, self._ports.randomness)

    def take_up(self, keys: DeviceKeys, chain: Chain) -> Membership:
        return Membership.adopt(self._ports.disk, self._ports.randomness, self._ports.clock, keys, chain)


@dataclass(frozen=True)
class Wanted:
    """What the joiner asks for. `addresses` are multiaddrs of the inviting device, when LAN discovery can't see it."""

    invitation: Code | Ticket
    name: str
    tier: str
    addresses: tuple[str, ...] = ()
    timeout_s: float = 60.0


def preflight(disk: Disk, randomness: Randomness) -> DeviceKeys:
    """Check that the home is free, writable and roomy; returns this device's keys, which a failed join keeps.

    Errors: `ConflictError`, `NoSpace`, `ProtocolError` for a damaged key.
    """
    refuse_second(disk)
    free_bytes = disk.free_bytes()
    if free_bytes < FREE_BYTES_MIN:
        raise NoSpace(f"the home's disk has {free_bytes >> 20} MiB left, and a device needs {FREE_BYTES_MIN >> 20} at "
                      "least; the code was not used", next_step="free some space, or choose another --home")
    if disk.exists(DEVICE_KEY):
        return DeviceKeys.from_bytes(disk.read(DEVICE_KEY))
    return _new_keys(disk, randomness)


def _new_keys(disk: Disk, randomness: Randomness) -> DeviceKeys:
    keys = draw_keys(randomness)
    disk.write_atomic(DEVICE_KEY, keys.to_bytes(), private=True)
    return keys


def check_clock(now_unix_s: float) -> None:
    """Errors: `NodeError` E_CLOCK for a clock that was never set: certificates and rounds end by it."""
    if not CLOCK_MIN_UNIX_S <= now_unix_s < CLOCK_MAX_UNIX_S:
        raise NodeError(f"the clock of this machine can't be right (it says {_day(now_unix_s)}), and certificates end "
                        "by it; the code was not used", code="E_CLOCK",
                        next_step="set it: sudo date -s 'YYYY-MM-DD hh:mm'   or join all the same: add --any-clock")


def _day(unix_s: float) -> str:
    days = int(unix_s // 86_400)
    return "a day before 1970" if days < 0 else f"the year {1970 + int(days / 365.2425)}"


def check_name(name: str) -> None:
    """Errors: `UsageError` for a name that no certificate can hold."""
    if not name or len(name.encode("utf-8", "replace")) > limits.name_bytes_max or not name.isprintable():
        raise UsageError(f"{name[:80]!r} can't be a device's name: 1 to {limits.name_bytes_max} bytes, no control "
                         "characters; the code was not used", next_step="choose another: --name NAME")


async def join_household(ports: Ports, keys: DeviceKeys, wanted: Wanted, report: Report = lambda state: None,
                         settle: Settle = lambda device: None, place: Place | None = None) -> Membership:
    """Join and return this device's place in the household, durable. The network must not be serving yet. `place` is
    by default a free home.

    A key that the household has removed is of no use any more: then a new one is drawn, told, and tried once.
    Errors: `NetworkError` when nobody answers; `TryAgain`; the join's `ProtocolError`; `NoSpace`.
    """
    place = place or FreeHome(ports)
    attempt = _Attempt(ports, keys, wanted, report, settle, place)
    try:
        return await _try(attempt, ports, keys, wanted, report)
    except DeviceRevoked:
        if not attempt.proved:  # said by somebody who does not know the code
            raise
    report({"state": "new-key"})
    keys = place.new_keys()
    return await _try(_Attempt(ports, keys, wanted, report, settle, place), ports, keys, wanted, report)


async def _try(attempt: _Attempt, ports: Ports, keys: DeviceKeys, wanted: Wanted, report: Report) -> Membership:
    async with ports.network.serve(keys.sign_seed, [], {}):
        with trio.move_on_after(wanted.timeout_s) as scope:
            report({"state": "looking"})
            membership = await attempt.run(scope)
            if membership is not None:
                return membership
    raise attempt.nobody()


class _Attempt:
    def __init__(self, ports: Ports, keys: DeviceKeys, wanted: Wanted, report: Report, settle: Settle,
                 place: Place) -> None:
        self._ports = ports
        self._keys = keys
        self._wanted = wanted
        self._report = report
        self._settle = settle
        self._place = place
        self.proved = False
        """Whether the other side has shown that it knows the code."""
        self._unreachable = ""
        self._unknown: Exception | None = None
        self._busy = False

    async def run(self, scope: trio.CancelScope) -> Membership | None:
        """Try the given addresses, or the ticket's, or those that the LAN announces for the nameplate."""
        invitation, given = self._wanted.invitation, self._wanted.addresses
        if not given and isinstance(invitation, Ticket):
            given = invitation.addresses
        if given:
            return await self._first_that_joins(given, scope)
        tried: set[str] = set()
        async with self._ports.discovery.browse(PAIR_SERVICE) as found:
            async for announcement in found:
                if announcement.name.partition("-")[0] == invitation.selector:
                    fresh = [address for address in announcement.addresses if address not in tried]
                    tried.update(fresh)
                    membership = await self._first_that_joins(fresh, scope)
                    if membership is not None:
                        return membership
        return None

    async def _first_that_joins(self, addresses: Sequence[str], scope: trio.CancelScope) -> Membership | None:
        """Join at the first address that answers and knows the code; None when there is none. Addresses are tried a
        little apart and not one after the other: several of a device's may lead nowhere from here."""
        expected = self._wanted.invitation.inviter if isinstance(self._wanted.invitation, Ticket) else None
        left = list(dict.fromkeys(addresses))
        while left:
            try:
                connection = await race(self._ports.network, left, expected, DIAL_TIMEOUT_S)
            except NetworkError as error:
                self._unreachable = error.what
                return None
            try:
                return await self._join_over(connection, scope)
            except CodeUnknown as error:
                self._unknown = error
                left.remove(connection.remote_address)
            except SessionBusy:
                if not self._busy:
                    self._report({"state": "busy"})
                self._busy = True
                await trio.sleep(BUSY_WAIT_S)  # another join is under way there; the time-out ends this
            except NetworkError as error:
                self._unreachable = f"{connection.remote_address}: {error.what}"
                left.remove(connection.remote_address)
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                    await connection.close()
        return None

    async def _join_over(self, connection: Connection, scope: trio.CancelScope) -> Membership:
        ports, stored = self._ports, list[Membership]()

        async def perform(action: join.Action, machine: join.Inviter | join.Joiner, post: Post,
                          nursery: trio.Nursery) -> join.Event | None:
            if isinstance(action, join.AwaitApproval):
                self.proved = True
                scope.deadline = float("inf")  # we are talking: from here on the machine's own deadlines count
                self._report({"state": "asking", "fingerprint": action.fingerprint,
                              "inviter": action.offer.inviter_name, "role": action.offer.role,
                              "identity": identity_text(action.offer.identity_id)})
                return None
            assert isinstance(action, join.StoreChain), f"a joiner has no action {type(action).__name__}"
            try:
                AddressBook(ports.disk).keep(connection.remote_public, connection.remote_address, ())
                seen.write(ports.disk, {connection.remote_public: seen.Sighting(int(ports.clock.now_unix_s()))})
                self._settle(action.device)
                stored.append(self._place.take_up(self._keys, action.chain))
            except NodeError as error:
                failure = JoinError(f"The new device could not keep what it was given: {error}")
                failure.__cause__ = error
                return join.Aborted(failure)
            return join.Stored()

        stream = await connection.open_stream(JOIN_PROTOCOL)
        self._report({"state": "found", "address": connection.remote_address})
        machine, actions = join.Joiner.start(
            self._wanted.invitation, self._keys, peer=connection.remote_public, name=self._wanted.name,
            tier=self._wanted.tier, entropy=ports.randomness.draw(join_entropy_bytes), now_s=ports.clock.monotonic_s())
        outcome = await run_machine(machine, actions, stream, ports.clock, perform)
        if isinstance(outcome, join.Failed):
            cause = outcome.error.__cause__
            raise cause if isinstance(cause, NodeError) else outcome.error
        return stored[0]

    def nobody(self) -> Exception:
        """Why no join came about."""
        if self._unknown is not None:
            return self._unknown
        wanted, again = self._wanted, "on the inviting device: hinet-node invite   then here: hinet-node join CODE"
        if self._busy:
            return TryAgain("another device is joining there just now, and its owner has not answered yet",
                            next_step="wait until it is done, then hinet-node join CODE; if that code was used by "
                                      "then, " + again, code="E_BUSY")
        if self._unreachable:
            return NetworkError(f"the inviting device could not be reached ({self._unreachable})",
                                next_step="check that both are on one network and the agent runs there; then "
                                          "hinet-node join CODE --address ADDRESS", code="E_INVITER_UNREACHABLE")
        plate = wanted.invitation.selector if isinstance(wanted.invitation, Code) else "this ticket"
        return NetworkError(f"nobody on this network waits for a device with the code {plate}-… "
                            f"(looked for {wanted.timeout_s:.0f} s)", code="E_NOBODY_INVITES",
                            next_step=f"{again}; where multicast is blocked add --address ADDRESS")
