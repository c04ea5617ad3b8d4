"""Keeping the vault in step with the siblings: ask, compare, pull, accept. SPEC.md, 6.6.

Pull only: whoever lacks something asks, when a session opens, when a sibling says that it changed, and every 30 s. A
keeper runs the same code without keys. Leaves sessions to `sessions.peers`, decisions to `hinet_protocol.reconcile`,
moving packs to `transfer`, answers to `serve`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from hinet_node.errors import IntegrityError, NetworkError, NodeError
from hinet_node.ports import Network
from hinet_node.vault.acceptance import lost_there, rolled_back
from hinet_node.vault.bulk import Bulk
from hinet_node.vault.compare import offered_packs
from hinet_node.vault.pacing import Limit
from hinet_node.vault.serve import Server
from hinet_node.vault.transfer import Transfer, disk_failed
from hinet_node.vault.vault import Vault
from hinet_protocol.errors import HeadMalformed, HeadUnauthorised, ProtocolError, SignatureInvalid
from hinet_protocol.heads import Head, list_names, packs_needed_max, read_head
from hinet_protocol.messages import HeadsGet, HeadsList, VaultChanged
from hinet_protocol.packs import pack_bytes_max
from hinet_protocol.reconcile import Needs, needs_exchange, needs_of, plan_pull
from hinet_protocol.trees import join

if TYPE_CHECKING:
    from hinet_node.sessions.peers import Peers, Session

_ROUNDS_MAX = 8
_ANNOUNCE_PAUSE_S = 0.05
_STAYS = frozenset(("E_PACK_REFUSED", "E_HEAD", "E_SIGNATURE", "E_NO_SPACE", "E_ROLLBACK"))
"""What the owner should know of a sibling after it has left as well."""


@dataclass(eq=False)
class _Follower:
    """The task that keeps up with one session."""

    session: Session
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    wake: trio.Event = field(default_factory=trio.Event)
    noted: set[str] = field(default_factory=set)
    """Codes of what went wrong in the comparison that is under way."""
    lacks: frozenset[bytes] = frozenset()
    """Needed packs that the sibling did not offer in the last comparison, and that come from nobody else."""
    failed_s: float = -math.inf
    """When this sibling last left others its packs to give."""
    asked_at: bytes = b""
    """The sibling's digest when it was last asked for its packs only to know how far it is."""


class Replicator:
    """Answers siblings' questions about the vault and pulls what is missing. One per agent, made before `Peers.run`."""

    def __init__(self, vault: Vault, peers: Peers, network: Network | None = None) -> None:
        """`network` makes bulk connections; without it all packs come over the sessions."""
        self._vault = vault
        vault.replicator = self
        self._core = vault.core
        self._peers = peers
        self._followers: dict[bytes, _Follower] = {}
        self._changed = trio.Event()
        self._grown = trio.Event()
        self._known = self._what_chain_says()
        self.limit = Limit(self._core.clock, self._core.settings.rate)
        self._server = server = Server(self._core, self.limit)
        self._bulk = None if network is None else Bulk(network, self._core.randomness, server)
        self._transfer = Transfer(self._core, self._bulk, self.limit)
        for kind, handler in (*server.handlers(), *(self._bulk.handlers() if self._bulk is not None else ()),
                              (VaultChanged, self._on_notice)):
            peers.on(kind, handler)

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Works until cancelled. A session that fails, a full disk or a lying sibling end up in
        `Vault.status().trouble` and never end this task."""
        stop_listening = self._vault.on_change(self._on_change)
        try:
            async with self._peers.events() as events, trio.open_nursery() as nursery:
                if self._bulk is not None:
                    self._bulk.begin(nursery)
                nursery.start_soon(self._announce)
                nursery.start_soon(self._tend, nursery)
                for session in self._peers.sessions:
                    self._follow(nursery, session)
                task_status.started()
                async for event in events:
                    if event.kind == "opened" and event.session is not None:
                        self._follow(nursery, event.session)
                    elif event.kind == "closed":
                        self._leave(event.public, event.session)
        finally:
            stop_listening()

    @property
    def pulled_packs(self) -> int:
        """Packs fetched since the start."""
        return self._transfer.pulled_packs

    @property
    def pulled_bytes(self) -> int:
        return self._transfer.pulled_bytes

    def moving(self) -> dict[str, int]:
        """What `status` says of the packs that travel: the limit (0: none), those that come now, what came and went."""
        return {"rate": self.limit.rate, "coming_packs": len(self._transfer.in_flight),
                "pulled_packs": self.pulled_packs, "pulled_bytes": self.pulled_bytes,
                "sent_bytes": self._server.sent_bytes}

    def nudge(self) -> None:
        """Look at all siblings now rather than at the next interval."""
        for follower in self._followers.values():
            follower.wake.set()

    def online(self) -> frozenset[bytes]:
        """The siblings that a session is open with."""
        return frozenset(session.device.public for session in self._peers.sessions)

    def chain_grew(self) -> None:
        """The chain may have brought keys: look now rather than at the next interval."""
        self._grown.set()

    # ---- when to look --------------------------------------------------------------------------------------------

    def _follow(self, nursery: trio.Nursery, session: Session) -> None:
        public = session.device.public
        known = self._followers.get(public)
        if known is not None:
            if known.session is session:
                return
            known.scope.cancel()
        follower = self._followers[public] = _Follower(session)
        nursery.start_soon(self._keep_in_step, follower)

    def _leave(self, public: bytes, session: Session | None) -> None:
        known = self._followers.get(public)
        if known is not None and (session is None or known.session is session):
            known.scope.cancel()
            del self._followers[public]
            for code, subject in tuple(self._core.trouble):
                if subject == public and code not in _STAYS:
                    self._core.settle(code, subject)

    async def _keep_in_step(self, follower: _Follower) -> None:
        session, public = follower.session, follower.session.device.public
        with follower.scope:
            try:
                while True:
                    follower.noted = set()
                    self._core.same_at.pop(public, None)
                    await self._look(follower)
                    for code, subject in tuple(self._core.trouble):
                        if subject == public and code not in follower.noted:
                            self._core.settle(code, subject)
                    await self._next_turn(follower)
                    follower.wake = trio.Event()
            finally:
                with trio.CancelScope(shield=True):
                    await self._transfer.leave(session)

    async def _look(self, follower: _Follower) -> None:
        """Compare with one sibling once, and pull; what goes wrong is noted."""
        name = follower.session.device.name
        try:
            if await self._sync(follower):
                self.nudge()
            return
        except NodeError as error:
            self._note(follower, error)
        except ProtocolError as error:
            self._note(follower, NetworkError(f"{name}: {error}"))
        except OSError as error:
            self._note(follower, disk_failed(error))
        now_s = trio.current_time()
        if now_s - follower.failed_s >= self._core.settings.sync_interval_s:
            follower.failed_s = now_s  # not at each failure: two that fail would wake each other without a pause
            for other in self._followers.values():
                if other is not follower:
                    other.wake.set()  # what this sibling had begun to give is anybody's again

    async def _next_turn(self, follower: _Follower) -> None:
        """Until the next comparison is due. One side's question tells both: while the sibling asks and finds no
        difference, this device need not ask."""
        public = follower.session.device.public
        self._core.compared[public] = self._core.compared.get(public, 0) + 1
        while True:
            with trio.move_on_after(self._core.settings.sync_interval_s):
                await follower.wake.wait()
                return
            if follower.noted or self._core.same_at.pop(public, None) != self._core.digest():
                return

    def _note(self, follower: _Follower, error: NodeError) -> None:
        follower.noted.add(error.code)
        self._core.note_error(error, follower.session.device.public)

    async def _on_notice(self, session: Session, message: VaultChanged) -> None:
        if needs_exchange(self._core.digest(), message.digest):
            follower = self._followers.get(session.device.public)
            if follower is not None:
                follower.wake.set()
        else:
            self._core.met_equal(session.device.public)

    def _on_change(self) -> None:
        self._changed.set()
        if self._core.has_damage():
            self.nudge()

    async def _announce(self) -> None:
        """Tell the siblings after each change; changes in quick succession are told once."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            digest = self._core.digest()
            for session in self._peers.sessions:
                try:
                    await session.notify(VaultChanged(digest))
                except NodeError:
                    continue  # its end is told by an event; the next session begins with a comparison
            await trio.sleep(_ANNOUNCE_PAUSE_S)

    async def _tend(self, nursery: trio.Nursery) -> None:
        """Follow sessions whose event was lost; open what could not be opened before keys came with the chain."""
        while True:
            with trio.move_on_after(self._core.settings.sync_interval_s):
                await self._grown.wait()
            self._grown = trio.Event()
            for session in self._peers.sessions:
                self._follow(nursery, session)
            known = self._what_chain_says()
            if known != self._known or self._core.head_due():
                self._known = known
                try:
                    await self._vault.keys_changed()
                except NodeError as error:
                    self._core.note_error(error, self._core.household.device_public)
                except OSError as error:
                    self._core.note_error(disk_failed(error), self._core.household.device_public)
            await self._transfer.tidy()

    def _what_chain_says(self) -> tuple[frozenset[bytes], frozenset[bytes]]:
        """The epochs whose keys are here, and all devices: with more of them trees may open that did not before."""
        household = self._core.household
        return frozenset(household.epoch_keys()), frozenset(household.names())

    # ---- one sibling ---------------------------------------------------------------------------------------------

    async def _sync(self, follower: _Follower) -> bool:
        """Compare with one sibling and pull what it has and this device lacks; whether anything came.

        Errors: `NetworkError` and the sibling's errors, `NoSpace`, `IntegrityError`.
        """
        session = follower.session
        own_digest, its_newest = self._core.digest(), self._core.heads.newest().get(session.device.public)
        reply = await self._ask(session, HeadsGet(own_digest), HeadsList)
        public = session.device.public
        if not needs_exchange(own_digest, reply.digest):
            self._core.met_equal(public)
            return False
        told = self._read_heads(follower, reply)
        if its_newest is not None:
            self._tell_rollback(follower, its_newest, told)
        self._core.peers_hold[public] = frozenset(head.hash for head in told)
        fresh = self._core.heads.fresh(told)
        came = False
        for _ in range(_ROUNDS_MAX):
            fresh = self._bounded(follower, fresh)
            if not await self._pull_round(follower, fresh):
                break
            came = True
        fresh = self._bounded(follower, fresh)
        if not came and follower.asked_at != reply.digest:
            follower.asked_at = reply.digest
            await offered_packs(self._core, session.device, partial(self._ask, session))
        if not fresh and not came:
            return False
        kept = await self._vault.accept(fresh)
        self._await([head for head in fresh if head not in kept], public)
        self._tell_lost(follower, [head for head in fresh if self._core.heads.judge(head).kind in ("new", "fork")])
        return bool(kept) or came

    def _tell_lost(self, follower: _Follower, left: list[Head]) -> None:
        """Heads could not be taken up because the sibling itself has lost packs of them, and nobody else sends them.
        What other heads have taken up of them is here all the same."""
        if not follower.lacks:
            return
        covered = dict(join(head.vector for head in self._core.heads.current()))
        lost = {head: follower.lacks & needs_of([head], self._core.store.read_list).packs for head in left
                if covered.get(head.device, 0) < head.seq}
        head = next((head for head, packs in lost.items() if packs), None)
        if head is not None:
            trouble = lost_there(follower.session.device.name, head, len(frozenset().union(*lost.values())))
            follower.noted.add(trouble.code)
            self._core.note(trouble, follower.session.device.public)

    def _await(self, heads: list[Head], public: bytes) -> None:
        """What these heads need must not be collected while it comes."""
        self._core.pins.await_for(public, needs_of(heads, self._core.store.read_list).packs)

    def _tell_rollback(self, follower: _Follower, newest: Head, told: list[Head]) -> None:
        device = follower.session.device
        trouble = rolled_back(device.public, device.name, newest.seq, told)
        if trouble is not None:
            follower.noted.add(trouble.code)
            self._core.note(trouble, device.public)

    def _read_heads(self, follower: _Follower, reply: HeadsList) -> list[Head]:
        members, name = self._core.household.members(), follower.session.device.name
        found = []
        for raw in reply.heads:
            try:
                found.append(read_head(raw, identity=self._core.household.identity_id, members=members))
            except HeadUnauthorised:
                continue  # a device that was revoked, or whose certificate has not reached this one yet
            except (HeadMalformed, SignatureInvalid) as error:
                self._note(follower, IntegrityError(f"{name} sent a head that was refused: {error}", code=error.code,
                                                    next_step=f"Run `hinet-node vault verify` on {name}."))
        believed = self._core.heads.believable(found, members)
        if len(believed) < len(found):
            self._note(follower, IntegrityError(f"{name} sent a head that claims numbers which nobody used.",
                                                code=HeadMalformed.code,
                                                next_step="See who made it: hinet-node vault status"))
        return believed

    def _bounded(self, follower: _Follower, fresh: list[Head]) -> list[Head]:
        """Those heads whose lists of packs, as far as they are here, can be read within bounds."""
        names: dict[bytes, int] = {}
        for device in {head.device: None for head in fresh}:
            lists = {name for head in (*self._core.needed_heads(), *fresh) if head.device == device
                     for name in head.lists}
            names[device] = sum(list_names(self._core.store.index.pack_size(name) or 0) for name in lists)
        for device, count in names.items():
            if count > packs_needed_max:
                self._note(follower, IntegrityError(
                    f"The state of {self._core.name_of(device)} names {count} packs, and {packs_needed_max} are "
                    "the most. It was refused.", code=HeadMalformed.code,
                    next_step="See who made it: hinet-node vault status"))
        return [head for head in fresh if names[head.device] <= packs_needed_max]

    async def _pull_round(self, follower: _Follower, fresh: list[Head]) -> bool:
        """Pull what the heads need as far as it is known now (a pack list may name more); whether a pack came."""
        session, follower.lacks = follower.session, frozenset()
        needs, coming_needs = (needs_of(heads, self._core.store.read_list)
                               for heads in (self._core.needed_heads(), fresh))
        needs = Needs(needs.packs | coming_needs.packs, needs.unknown_lists | coming_needs.unknown_lists)
        self._core.pins.await_for(session.device.public, coming_needs.packs)
        held = self._core.store.index.packs()
        if needs.packs <= held.keys():
            return False
        offered = await offered_packs(self._core, session.device, partial(self._ask, session))
        coming = self._transfer.in_flight
        plan = plan_pull(needs, held, {name: size for name, size in offered.items() if name not in coming},
                         size_bytes_max=pack_bytes_max, started=self._core.store.incoming())
        follower.lacks = frozenset(name for name in plan.absent if name not in coming)
        if not plan.packs:
            return False
        begun = self._core.store.incoming()
        self._core.check_room(plan.size_bytes - sum(begun.get(name, 0) for name, _ in plan.packs))
        return await self._transfer.pull(session, plan) > 0

    async def _ask(self, session: Session, question: Any, answer: Any) -> Any:
        reply = await session.request(question, timeout_s=self._core.settings.request_timeout_s)
        if not isinstance(reply, answer):
            raise NetworkError(f"{session.device.name} answered a question about the vault with something else.",
                               next_step="Bring both devices to the same version of hinet-node.")
        return reply
