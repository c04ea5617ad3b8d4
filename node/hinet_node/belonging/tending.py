"""What an admin's agent does for the household without being asked: new epochs, and certificates that end soon.

When an epoch is needed is the chain's to say, which certificates are due `certificates`'s; entries are made by
`membership`. Here is the waiting: admins take turns by seniority, so that they do not all do the same at once. SPEC
sections 3.4 and 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import trio

from hinet_node.belonging.certificates import due
from hinet_node.belonging.membership import Membership
from hinet_node.errors import NoSpace
from hinet_node.ports import Clock
from hinet_protocol.errors import EpochError, ProtocolError

TURN_S = 5.0
RETRY_S = 60.0
OTHERS_S = 600.0
"""How long another admin has to make an epoch for which this one lacks a key, before it does without that key."""
LOOK_S = 3600.0
"""Between two looks at certificates: clocks jump, machines sleep, and days pass without an event."""


class Tending:
    """One per agent. `met` gives the keys of the devices with an open session."""

    def __init__(self, membership: Membership, clock: Clock, met: Callable[[], Collection[bytes]],
                 log: Callable[[str], None]) -> None:
        self._membership = membership
        self._clock = clock
        self._met = met
        self._log = log
        self._grown = trio.Event()
        self._news = trio.Event()

    def chain_grew(self) -> None:
        """Look again at epochs and certificates."""
        self._grown.set()
        self._news.set()

    def session_opened(self) -> None:
        """Look again at certificates: a device is in reach."""
        self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tend_epoch)
            nursery.start_soon(self._tend_certificates)

    # ---- epochs ---------------------------------------------------------------------------------------------------

    async def _tend_epoch(self) -> None:
        """Make a new epoch when one is needed."""
        lacking_since_s: float | None = None
        while True:
            grown = self._grown = trio.Event()  # before looking: what grows meanwhile ends the wait below at once
            turn = self._turn()
            wait_s = math.inf
            if turn is not None:
                await trio.sleep(TURN_S * turn)
                alone = lacking_since_s is not None and trio.current_time() - lacking_since_s >= OTHERS_S
                lacks, wait_s = self._renew_epoch(without_lost=alone)
                lacking_since_s = (lacking_since_s or trio.current_time()) if lacks else None
            with trio.move_on_after(wait_s):
                await grown.wait()

    def _renew_epoch(self, *, without_lost: bool) -> tuple[bool, float]:
        """Whether a key was lacking, and how long to wait, at most, before the next look."""
        try:
            if self._membership.renew_epoch_if_needed(without_lost=without_lost):
                self._log("a new vault epoch is in force")
        except NoSpace as error:
            self._log(f"a new vault epoch is due and has to wait: {error}")
            return False, RETRY_S
        except EpochError as error:
            self._log(f"a new vault epoch is due, and another admin has to make it: {error}")
            return True, OTHERS_S
        return False, math.inf

    # ---- certificates ---------------------------------------------------------------------------------------------

    async def _tend_certificates(self) -> None:
        """Renew what is due, now and whenever a device is met, the chain grows or an hour has passed."""
        while True:
            self._news = trio.Event()
            news = self._news
            wait_s = LOOK_S
            turn = self._turn()
            if turn is not None and self._due():
                await trio.sleep(TURN_S * turn)
                wait_s = self._renew_certificates()
            with trio.move_on_after(wait_s):
                await news.wait()

    def _due(self) -> list[bytes]:
        membership = self._membership
        return [device.public for device in due(membership.chain(), membership.device_public, self._met(),
                                                int(self._clock.now_unix_s()))]

    def _renew_certificates(self) -> float:
        """How long to wait, at most, before the next look."""
        for public in self._due():
            try:
                self._membership.renew_certificate(public)
            except NoSpace as error:
                self._log(f"certificates end soon, and renewing them has to wait: {error}")
                return RETRY_S
            except ProtocolError as error:
                self._log(f"the certificate of {self._membership.names().get(public)} could not be renewed: {error}")
                continue
            self._log(f"the certificate of {self._membership.names()[public]} is renewed")
        return LOOK_S

    def _turn(self) -> int | None:
        """This device's place among the live admins, None for no admin."""
        admins = [device.public for device in self._membership.chain().members() if device.role == "admin"]
        own = self._membership.device_public
        return admins.index(own) if own in admins else None
