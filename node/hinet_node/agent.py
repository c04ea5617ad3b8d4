"""The agent: one nursery with sessions, vault, learning, joining and the local API, over the ports it was given.

Who decides what: sessions `peers`, files `vault`, belonging `membership` and `tending`, joining `invite`, models
`learning`, calls `api`. The agent wires them, answers `status`, and tells its log what happened, one readable line for
each event. It imports no port's implementation: the command line and simnet bring their own.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from hinet_node.api import Api
from hinet_node.belonging.invite import JOIN_PROTOCOL, Inviter
from hinet_node.belonging.membership import Membership
from hinet_node.belonging.recover_stream import RecoverAnswer
from hinet_node.belonging.tending import Tending
from hinet_node.config import Config
from hinet_node.learning.service import Learning
from hinet_node.local import server as socket_server
from hinet_node.local.agent_verbs import agent_verbs
from hinet_node.local.chain_verbs import chain_verbs
from hinet_node.local.vault_table import all_vault_verbs
from hinet_node.local.vault_watch_verbs import vault_watch_verbs
from hinet_node.machine import Machine
from hinet_node.ports import Ports
from hinet_node.rates import read_rate
from hinet_node.sessions import seen
from hinet_node.sessions.peers import LocalFacts, PeerEvent, Peers
from hinet_node.vault import Replicator, Vault, VaultSettings
from hinet_node.vault.scrub import Scrub, ScrubSettings
from hinet_node.vault.upkeep import Upkeep
from hinet_node.vault.watching import Watching
from hinet_protocol.errors import CloneDetected, DeviceRevoked
from hinet_protocol.identity import fingerprint
from hinet_protocol.recovering import RECOVER_PROTOCOL
from hinet_protocol.relay import RelayLimits

Log = Callable[[str], None]
"""Takes one readable line without a time."""

GOODBYE_S = 2.0
REMEMBER_S = 3_600.0
"""How often what the open sessions tell is written down: so much a crash may cost of when a sibling was last seen."""

class Agent:
    """One running device. `api` can be called once `run` has started."""

    def __init__(self, ports: Ports, membership: Membership, config: Config, *, listen: Sequence[str] | None = None,
                 machine: Machine | None = None, version: str = "", log: Log = lambda line: None,
                 socket: Path | None = None, vault_settings: VaultSettings | None = None,
                 discover: bool = True) -> None:
        """`listen` are multiaddrs, by default those of the settings; `socket` is where the local API listens, None for
        none (simnet). Nothing happens before `run`."""
        self.ports = ports
        self.membership = membership
        self.config = config
        self.machine = machine or Machine()
        self.version = version
        self.log = log
        self.api = Api()
        self.started_s = ports.clock.now_unix_s()
        self.last_seen: dict[bytes, seen.Sighting] = {}
        self.clock_offsets_s: dict[bytes, int] = {}
        self.refused: dict[bytes, str] = {}
        self.clones: dict[bytes, str] = {}
        self.removed_by: dict[bytes, None] = {}
        """The members that say this device was revoked. Their word closes their doors; the chain alone decides here."""
        self._listen = tuple(config.listen_addresses() if listen is None else listen)
        self._socket = socket
        settings = vault_settings or VaultSettings()
        self._vault_settings = replace(settings, rate=read_rate(config.rate)) if config.rate else settings
        self._discover = discover
        self._stop = trio.Event()
        self.stopped = trio.Event()
        self.vault: Vault
        self.peers: Peers
        self.replicator: Replicator
        self.upkeep: Upkeep
        self.watching: Watching
        self.inviter: Inviter
        self.learning: Learning
        self.tending: Tending

    def stop(self) -> None:
        """Ask `run` to end in order: goodbye to the siblings, files closed."""
        self._stop.set()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where this device can be dialled now; changes with the machine's interfaces."""
        return tuple(self.peers.addresses)

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Run until `stop` or cancellation; `started` gives the addresses that this device can be dialled at.

        Errors: `PortBusy` for a wanted port; `NoSpace`; what a part can't go on from.
        """
        self.vault = await Vault.open(self.ports.disk, self.ports.randomness, self.ports.clock, self.membership,
                                      self._vault_settings)
        try:
            async with trio.open_nursery() as nursery:
                await self._start_parts(nursery)
                task_status.started(self.addresses)
                await self._stop.wait()
                with trio.move_on_after(GOODBYE_S):
                    async with trio.open_nursery() as farewell:
                        for session in self.peers.sessions:
                            farewell.start_soon(session.close, "this device stops")
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await self.vault.close()
            self.stopped.set()

    async def _start_parts(self, nursery: trio.Nursery) -> None:
        self.inviter = Inviter(self.ports, self.membership, self.log, lambda: self.addresses, discover=self._discover)
        self.learning = Learning(self.ports, self.vault, self.membership)
        self.peers = Peers(self.ports, self.membership.keys.sign_seed, self.membership, self.facts,
                           listen=self._listen, static=self.config.static, discover=self._discover,
                           handlers={JOIN_PROTOCOL: self.inviter.handle,
                                     RECOVER_PROTOCOL: RecoverAnswer(self.membership, self.log).handle},
                           relays=self.config.relay, relay_limits=_relay_limits(self.config), log=self.log)
        self.api.add_all(agent_verbs(self))
        self.api.add_all(chain_verbs(self.membership, self.log))
        self.api.add_all(all_vault_verbs(self.vault, self.ports.disk, self.membership))
        self.watching = Watching(self.vault, self.ports, self.log, home=self.ports.disk.path(""))
        self.api.add_all(vault_watch_verbs(self.watching))
        self.api.add_all(self.inviter.verbs())
        self.api.add_all(self.learning.handlers())
        self.tending = Tending(self.membership, self.ports.clock,
                               lambda: [session.device.public for session in self.peers.sessions], self.log)
        self.membership.on_growth(self._chain_grew)
        self.replicator = Replicator(self.vault, self.peers, self.ports.network)
        self.upkeep = Upkeep(self.vault, self.peers, self.ports.clock, self.log)
        await nursery.start(self.replicator.run)
        await nursery.start(self.watching.run)
        await nursery.start(self._watch_peers)
        await nursery.start(self.peers.run)
        for address in self.addresses:
            self.log(f"listening on {address}")
        await nursery.start(self.inviter.run)
        nursery.start_soon(self._remember_now_and_then)
        nursery.start_soon(self.tending.run)
        nursery.start_soon(self.upkeep.run)
        nursery.start_soon(Scrub(self.vault, self.ports.clock, _scrub_settings(self.config), self.log).run)
        await nursery.start(self.learning.run)
        if self._socket is not None:
            await nursery.start(socket_server.serve, self.api, self._socket, self._unexpected)

    def facts(self) -> LocalFacts:
        """What this device says of itself to its siblings."""
        bases = tuple(bytes.fromhex(name) for name in self.ports.disk.list("bases") if _is_digest(name))
        return LocalFacts(tier=self.membership.tier, backends=self.machine.backends, bases=bases,
                          memory_bytes=self.machine.memory_bytes, agent_version=self.version)

    async def _watch_peers(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        self.last_seen = seen.read(self.ports.disk)
        async with self.peers.events() as events:
            task_status.started()
            async for event in events:
                self._note(event)

    def _note(self, event: PeerEvent) -> None:
        name = self.membership.names().get(event.public, f"a stranger ({fingerprint(event.public)})")
        if event.kind == "opened" and event.session is not None:
            self.log(f"{name} connected from {event.session.address} ({event.session.hello.tier})")
            offset_s = event.session.hello.time_s - int(self.ports.clock.now_unix_s())
            self.clock_offsets_s[event.public] = offset_s
            self.tending.session_opened()
        elif event.kind == "closed":
            self.log(f"{name} left: {event.reason}")
        else:
            self.log(f"{name} was refused: {event.reason}")
            if self.membership.chain().is_member(event.public):
                self.refused[event.public] = event.reason
        if event.code == CloneDetected.code:
            self.clones[event.public] = event.reason  # a copied home: two devices under one key
        if event.code == DeviceRevoked.code and self.membership.chain().is_member(event.public):
            self.removed_by[event.public] = None
        if event.kind == "opened":
            self.clones.pop(event.public, None)
            self.clones.pop(self.membership.device_public, None)  # siblings judge, and this one takes us in
            self.removed_by.pop(event.public, None)
        if event.kind != "refused":
            self.refused.pop(event.public, None)
            if event.session is not None:
                self.last_seen[event.public] = seen.sighting(event.session, self.ports.clock.now_unix_s())
            seen.write(self.ports.disk, self.last_seen)

    async def _remember_now_and_then(self) -> None:
        while True:
            await trio.sleep(REMEMBER_S)
            if self.peers.sessions:
                self.remember_siblings()

    def remember_siblings(self) -> None:
        """Keep what the open sessions tell now, so that the next run of this agent knows it too."""
        now_s = self.ports.clock.now_unix_s()
        self.last_seen |= {session.device.public: seen.sighting(session, now_s) for session in self.peers.sessions}
        seen.write(self.ports.disk, self.last_seen)

    def _chain_grew(self) -> None:
        self.tending.chain_grew()
        self.peers.chain_grew()
        self.replicator.chain_grew()
        chain = self.membership.chain()
        self.log(f"the chain is at height {chain.height}: {len(chain.members())} devices belong")

    def _unexpected(self, verb: str, error: BaseException) -> None:
        lines = "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
        for line in (f"the call {verb} failed unexpectedly:", *lines):
            self.log(line)


def _scrub_settings(config: Config) -> ScrubSettings:
    default = ScrubSettings()
    return ScrubSettings(config.scrub_days, read_rate(config.scrub_rate) or default.rate)


def _relay_limits(config: Config) -> RelayLimits | None:
    """What this device carries for its siblings; None for nothing."""
    if not config.relay_serve:
        return None
    return RelayLimits(circuit_s=config.relay_circuit_s, circuit_bytes=config.relay_circuit_bytes)


def _is_digest(name: str) -> bool:
    return len(name) == 64 and all(letter in "0123456789abcdef" for letter in name)
