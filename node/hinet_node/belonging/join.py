"""The joining side: find the inviting device, run the join machine, take up the chain that comes.

Everything that can fail on this machine alone is checked first (`preflight`), so that no code is spent in vain. The
rules are `hinet_protocol.join`'s. SPEC section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from hinet_node.belonging.invite import PAIR_SERVICE
from hinet_node.belonging.join_stream import JOIN_PROTOCOL, Post, run_machine
from hinet_node.belonging.membership import Membership, draw_keys, refuse_second
from hinet_node.errors import NetworkError, NodeError, NoSpace
from hinet_node.home import DEVICE_KEY
from hinet_node.ports import Connection, Disk, Ports, Randomness
from hinet_node.sessions import seen
from hinet_node.sessions.address_book import AddressBook
from hinet_protocol import join
from hinet_protocol.errors import CodeUnknown, JoinError, SessionBusy
from hinet_protocol.identity import DeviceKeys
from hinet_protocol.invitations import Code, Ticket
from hinet_protocol.join.secrets import join_entropy_bytes

FREE_BYTES_MIN = 64 * 1_048_576
DIAL_TIMEOUT_S = 5.0
BUSY_WAIT_S = 1.0
CLOCK_MIN_UNIX_S = 1_735_689_600  # 2025: before it, a clock was never set

Report = Callable[[dict[str, str]], None]
"""Told what happens: {state: looking|found|asking, ...}."""


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

    Errors: `ConflictError`, `NoSpace`.
    """
    refuse_second(disk)
    free_bytes = disk.free_bytes()
    if free_bytes < FREE_BYTES_MIN:
        raise NoSpace(f"the home's disk has {free_bytes >> 20} MiB left, and a device needs {FREE_BYTES_MIN >> 20} at "
                      "least; the code was not used", next_step="free some space, or choose another --home")
    if disk.exists(DEVICE_KEY):
        return DeviceKeys.from_bytes(disk.read(DEVICE_KEY))
    keys = draw_keys(randomness)
    disk.write_atomic(DEVICE_KEY, keys.to_bytes(), private=True)
    return keys


def clock_warning(now_unix_s: float) -> str | None:
    """A line about a clock that was never set; joining works all the same."""
    if now_unix_s < CLOCK_MIN_UNIX_S:
        return "the clock of this machine was never set; joining works, but dates will be wrong"
    return None


async def join_household(ports: Ports, keys: DeviceKeys, wanted: Wanted, report: Report = lambda state: None,
                         ) -> Membership:
    """Join and return this device's place in the household, durable. The network must not be serving yet.

    Errors: `NetworkError` when nobody answers; the join's `ProtocolError`; `NoSpace`.
    """
    attempt = _Attempt(ports, keys, wanted, report)
    async with ports.network.serve(keys.sign_seed, [], {}):
        with trio.move_on_after(wanted.timeout_s) as scope:
            report({"state": "looking"})
            membership = await attempt.run(scope)
            if membership is not None:
                return membership
    raise attempt.nobody()


class _Attempt:
    def __init__(self, ports: Ports, keys: DeviceKeys, wanted: Wanted, report: Report) -> None:
        self._ports = ports
        self._keys = keys
        self._wanted = wanted
        self._report = report
        self._unreachable: list[str] = []
        self._unknown: Exception | None = None

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
        for address in addresses:
            membership = await self._try_address(address, scope)
            if membership is not None:
                return membership
        return None

    async def _try_address(self, address: str, scope: trio.CancelScope) -> Membership | None:
        """Join at one address; None when nobody there knows the code, or nobody is there."""
        expected = self._wanted.invitation.inviter if isinstance(self._wanted.invitation, Ticket) else None
        while True:
            try:
                connection = await self._ports.network.dial(address, expected, DIAL_TIMEOUT_S)
            except NetworkError as error:
                self._unreachable.append(f"{address}: {error.what}")
                return None
            try:
                return await self._join_over(connection, scope)
            except CodeUnknown as error:
                self._unknown = error
                return None
            except SessionBusy:
                await trio.sleep(BUSY_WAIT_S)  # another join is under way there; the time-out ends this
            except NetworkError as error:
                self._unreachable.append(f"{address}: {error.what}")
                return None
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                    await connection.close()

    async def _join_over(self, connection: Connection, scope: trio.CancelScope) -> Membership:
        ports, stored = self._ports, list[Membership]()

        async def perform(action: join.Action, machine: join.Inviter | join.Joiner, post: Post,
                          nursery: trio.Nursery) -> join.Event | None:
            if isinstance(action, join.AwaitApproval):
                scope.deadline = float("inf")  # we are talking: from here on the machine's own deadlines count
                self._report({"state": "asking", "fingerprint": action.fingerprint,
                              "inviter": action.offer.inviter_name, "role": action.offer.role})
                return None
            assert isinstance(action, join.StoreChain), f"a joiner has no action {type(action).__name__}"
            try:
                stored.append(Membership.adopt(ports.disk, ports.randomness, ports.clock, self._keys, action.chain))
                AddressBook(ports.disk).keep(connection.remote_public, connection.remote_address, ())
                seen.write(ports.disk, {connection.remote_public: seen.Sighting(int(ports.clock.now_unix_s()))})
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
        if self._unreachable:
            return NetworkError(f"the inviting device could not be reached ({self._unreachable[-1]})",
                                next_step="check that both are on one network and the agent runs there; then "
                                          "hinet-node join CODE --address ADDRESS", code="E_INVITER_UNREACHABLE")
        plate = wanted.invitation.selector if isinstance(wanted.invitation, Code) else "this ticket"
        return NetworkError(f"nobody on this network waits for a device with the code {plate}-… "
                            f"(looked for {wanted.timeout_s:.0f} s)", code="E_NOBODY_INVITES",
                            next_step=f"{again}; where multicast is blocked add --address ADDRESS")
